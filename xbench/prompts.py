"""From the name of a finding to the words of a prompt."""

from __future__ import annotations

from collections.abc import Sequence

from xbench.errors import UserError

__all__ = ["fill_templates", "phrase"]


def phrase(finding: str) -> str:
    """Write a finding as it stands inside a sentence: lower case, acronyms kept.

    >>> phrase("Pleural Effusion"), phrase("Enlarged PA"), phrase("COVID-19")
    ('pleural effusion', 'enlarged PA', 'COVID-19')
    """
    return " ".join(word if word.isupper() else word.lower() for word in finding.split())


def fill_templates(templates: Sequence[str], finding: str) -> list[str]:
    """Fill the phrase of a finding into templates that each hold `{finding}`.

    Raises:
        UserError: A template lacks `{finding}`, or holds another field.
    """
    try:
        prompts = [template.format(finding=phrase(finding)) for template in templates]
    except (KeyError, IndexError, ValueError) as error:
        raise UserError(
            f"A prompt template of {list(templates)} cannot be filled ({error!r}): write {{finding}} where the name of "
            "the finding belongs and no other braces.",
            exit_status=2,
        ) from error
    if len({*prompts}) < len(prompts) or any("{finding}" not in template for template in templates):
        raise UserError(
            f"The prompt templates {list(templates)} must differ, and each must hold {{finding}}, which is replaced by "
            "the name of the finding.",
            exit_status=2,
        )
    return prompts
