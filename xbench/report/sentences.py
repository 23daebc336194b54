"""What a report says: the answer that it opens with, and a finding for each of its sections.

Each sentence stands here once, with its condition; the page, `report.md`, W&B and the console show the same ones. Rates
are in percent, rounded half up; a lesion is an image with a finding and its region.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import median

from xbench.findings.conditions import LEAST
from xbench.findings.names import MACRO
from xbench.report.facts import FAR_APART, Facts, Standing, Standings, differ, facts_of, over_datasets
from xbench.report.names import count_of, dataset_title, in_words, listed, model_title, p_words, training_of, whole
from xbench.report.runs import setting_in_words
from xbench.report.schema import NEAR, Analysis, DatasetAnalysis, Estimate, InterventionAnalysis, Rewording, RunAnalysis
from xbench.report.statistics.correlation import own_settings
from xbench.report.statistics.interventions import SMALL
from xbench.report.statistics.paired import SIGNIFICANT
from xbench.report.tables.table import Table
from xbench.scoring.numbers import macro_mean

FEW_IMAGES = 500
"""Below this number of images the answer says that they are few."""


class Sentence(str):
    """A text; the page marks the first occurrence of `strong` in it."""

    strong: str

    def __new__(cls, text: str, strong: str = "") -> Sentence:
        """Return the text with what is marked in it."""
        made = super().__new__(cls, text)
        made.strong = strong
        return made

    @property
    def parts(self) -> tuple[str, str, str]:
        """The text before, in, and behind what is marked."""
        return self.partition(self.strong) if self.strong else (self, "", "")


class Answer:
    """A question, its answer, and further sentences; empty texts are left out."""

    def __init__(self, question: str, *texts: str) -> None:
        self.question = question
        self.texts = tuple(text if isinstance(text, Sentence) else Sentence(text) for text in texts if text)
        self.answer, *self.more = self.texts


# The answer


def answer(facts: Facts) -> Answer:
    """Answer the question of a report."""
    found, models = facts.pointing, facts.shown.models or list({run.run.model for run in facts.analysis.runs})
    if not models:
        text = "No model was run: these are references, which show what a number is worth."
        return Answer("Does the model look at the lesion, or only guess the label?", text)
    who = f"Does {model_title(models[0])}" if len(models) == 1 else f"Do {in_words(len(models))} models"
    if not found.rows:
        return said(facts) or _labels_only(facts, who)
    hidden = uses(facts)
    it = "it points" if len(models) == 1 else "they point"
    judged = f"Judged by where {it}, not by hiding lesions." if hidden is None else "Judged by hiding lesions."
    question = f"{who} look at the lesion, or only guess the label? {judged}"
    return Answer(question, *(hidden.texts if hidden else ()), _looks(found), _interval(found), *_further(facts))


def in_a_line(facts: Facts) -> str:
    """Return the answer as plain text, with the interval of its score."""
    reply, found = answer(facts), facts.pointing
    if not found.rows or uses(facts) is not None:
        return " ".join(reply.texts[: 3 if found.rows else None])
    score = found.head.score
    if score.low is None or score.high is None or found.undecided(found.head):
        return reply.answer
    whose = "" if len(found.models) == 1 else f" of {found.head.label}"
    return f"{reply.answer.removesuffix('.')}; 95% interval{whose} {whole(score.low)}% to {whole(score.high)}%."


_USES = {
    "depends": ("uses {}", "use {}"),
    "datasets": ("uses {} on some datasets", "use {} on some datasets"),
    "fill": ("uses {} or not, depending on how it is hidden", "use {} or not, depending on how it is hidden"),
    "any hole": ("reacts to any hole alike", "react to any hole alike"),
    "too few": (
        "was tested on too few lesions to tell whether it uses {}",
        "were tested on too few lesions to tell whether they use {}",
    ),
    "no sign": ("shows no sign of using {}", "show no sign of using {}"),
    "unchanged": ("does not use {}", "do not use {}"),
    "": ("was not tested by intervention", "were not tested by intervention"),
}
"""What one model does with the lesion, and what several do; where datasets differ, the first of theirs counts."""


def uses(facts: Facts) -> Answer | None:
    """Say whether hiding the lesion from the models at their own settings matters; None if it was not hidden."""
    found, groups, measured = facts.pointing, dict[tuple[str, str | None, str], list[str]](), list[str]()
    unused: list[str] = []
    rows = [row for row in found.rows if row.own] if len(found.models) > 1 else [found.head]
    # A run that hid no region, but all else, does not tell.
    hid = [(dataset_title(of.dataset), one) for of in found.datasets for one in of.interventions if one.main]
    tried = {title for title, one in hid if one.label in {row.label for row in rows}}
    for row in rows:
        shown = [(title, one) for title, one in hid if one.label == row.label]
        ones = [one for _, one in shown]
        kinds = {one.dependence for one in ones}
        split = len(kinds) > 1 and "depends" in kinds
        kind = "datasets" if split else next(kind for kind in _USES if kind in {*kinds, ""})
        points = "does not" if found.at_floor(row) else "seldom" if row.value < 0.5 else ""
        # Of several models, only what would mislead: pointing without use, and use without pointing.
        odd = len(rows) == 1 or kind in (("depends",) if points else ("no sign", "unchanged"))
        odd = odd and not found.undecided(row)
        groups.setdefault((kind, points if odd else None, row.answers), []).append(row.label)
        whose = [row.label] if len(rows) > 1 else []
        measured += [_measured(one, " on ".join([*whose, title] if len(tried) > 1 else whose)) for title, one in shown]
        if len(rows) == 1 and kind == "depends":
            unused = list(dict.fromkeys(finding for one in ones for finding in _unused(one)))
    if not measured:
        return None
    texts = []
    for (kind, looks, answers), names in sorted(groups.items(), key=lambda group: [*_USES].index(group[0][0])):
        several, does = len(names) > 1, _USES[kind][len(names) > 1]
        text = does.format("the lesion")
        if looks is not None:
            how = looks.replace("does", "do") if several else looks
            where = f"place{{}} {'their' if several else 'its'} {answers} on" if answers else "point{} at"
            verb = where.format("" if several or looks == "does not" else "s")
            but = "but" if kind == "depends" and looks else "and"
            text = f"{f'{how} {verb}'.strip()} the lesion {but} {does.format('it')}"
        texts.append(f"{listed(names) if len(rows) > 1 else 'It'} {text}")
    strong = does.format("it") if len(texts) == 1 else ""
    more = "Use (how much more the score falls for the lesion than for an equal patch elsewhere): "
    lead = more if len(rows) > 1 or len(tried) > 1 else ""
    but = f", with no sign of that for {listed(unused)}" if unused else ""
    answer = Sentence(f"{'; '.join(texts)}{but}.", strong)
    return Answer("Does the score depend on the lesion?", answer, f"{lead}{', '.join(measured)}.")


def _unused(one: InterventionAnalysis) -> list[str]:
    ends = [{key: of[one.number].high for key, of in fill.numbers.items() if one.number in of} for fill in one.main]
    small = SMALL[one.number]
    names = [finding for finding in ends[0] if finding != MACRO]
    return [name for name in names if all((high := of.get(name)) is not None and high <= small for of in ends)]


def _measured(one: InterventionAnalysis, label: str) -> str:
    name, tested = one.number, [fill for fill in one.main if fill.mean[one.number].value is not None]
    if not tested:
        return f"{label or 'No number'}: too few lesions of each finding"
    fill = (min if one.dependence == "depends" else max)(tested, key=lambda fill: fill.mean[name].value or 0.0)

    def written(value: float | None) -> str:
        text = f"{value or 0.0:z.2f}" if name == "use" else whole(value)
        return text.replace("-", "\u2212")

    value, unit = fill.mean[name], {"use": "SD", "premium": "points"}[name]
    number = f"{written(value.value)} {unit}"
    # All pairs of a single patient have no interval.
    limits = "" if value.low is None else f"{written(value.low)} to {written(value.high)}"
    if label:
        return f"{label} {number} ({limits or 'no interval'})"
    interval = f"95% interval {limits}" if limits else "no interval"
    falls = ("drop", "control_drop") if name == "use" else ("flip_rate", "control_flip_rate")
    region, patch = (written(fill.mean[part].value) for part in falls)
    lead = f"Hiding the lesion changes {region}% of decisions; hiding an equal patch elsewhere changes {patch}%"
    if name == "use":
        other = f"raises it by {patch[1:]}" if patch[0] == "\u2212" else f"lowers it by {patch}"
        does = f"raises the score by {region[1:]}" if region[0] == "\u2212" else f"lowers the score by {region}"
        lead = f"Hiding the lesion {does} standard deviations (SD); hiding an equal patch elsewhere {other}"
    lesions = f"{fill.counts['scored' if name == 'use' else 'decided']:,} tested lesions"
    findings = [name in of for key, of in fill.numbers.items() if key != MACRO]
    if not all(findings):
        lesions += f" of {in_words(sum(findings))} of {in_words(len(findings))} findings, those with {LEAST} or more"
    least = "smallest" if one.dependence == "depends" else "largest"
    if len(tested) > 1:
        lesions += f". Of {in_words(len(tested))} ways to hide pixels, \u201c{fill.fill}\u201d has the {least} {name}"
    p = p_words(fill.p_adjusted.get(name))
    return f"{lead}. The difference, called {name}, is {number} ({interval}; {p}) over {lesions}"


def tested_elsewhere(facts: Facts) -> str:
    """Say which runs had regions hidden where the report is about none of them."""
    hid = [one for dataset in facts.analysis.datasets for one in dataset.interventions if one.main]
    if not hid:
        return "No region was hidden; the table has the other changes"
    few = {one.dependence for one in hid} == {"too few"}
    end = f"; fewer than {LEAST} pairs per finding, too few for a result" if few else "; the results are below"
    return f"Regions were hidden for {listed([*dict.fromkeys(one.label for one in hid)])} only{end}"


def _looks(found: Standings) -> Sentence:
    head, floor, alone, percent = found.head, found.floor, len(found.models) == 1, _percent(found.head)
    its = f"{'it' if head.answers else 'its map'} "
    if floor is not None and all(map(found.at_floor, found.rows)):
        than = f"{floor.does} ({whole(floor.value)}%)"
        if unsure := next(filter(found.undecided, (head,) if alone else found.rows), None):
            ends = f"{whole(unsure.score.low)}% to {whole(unsure.score.high)}%"
            score = f"{its if alone else f'{unsure.label} '}{_located(unsure)}"
            span = f"The 95% interval, {ends}, includes both the score of {than} and much higher ones."
            return Sentence(f"Too few images to tell: {score}. {span}", ends)
        if alone:
            return Sentence(f"It guesses: {its}{_located(head)}. That is not significantly more than {than}.", percent)
        return Sentence(f"They guess: no score is significantly higher than that of {than}.", f"{whole(floor.value)}%")
    guess = ""
    if floor is not None and found.at_floor(head):
        guess = f"{'pointing at ' if floor.does.startswith('the middle') else ''}{floor.does}"
    verdict = _verdict(head, "on the lesion" if head.answers else "at the lesion", guess)
    if head.answers:
        verdict = verdict.replace("About half", "Partly on the lesion").replace("than half", "than half on the lesion")
    if found.undecided(head):
        verdict = "Too few images to tell"
    if alone:
        scores = _by_title(found)
        (least, first), (most, last) = scores[0], scores[-1]
        span = f", from {whole(least)}% ({first}) to {whole(most)}% ({last})" if len(scores) > 1 else ""
        return Sentence(f"{verdict}: {its}{_located(head, span)}.", percent)
    if len(found.tied) > 1:
        return _tie(found, verdict)
    who = f"{head.label} has the highest score and" if found.untested else f"the best, {head.label},"
    return Sentence(f"{verdict}: {who} {_located(head)}.", percent)


def _verdict(row: Standing, where: str, guess: str) -> str:
    """Judge a score by its interval; `guess` names a floor that scores as much, if any."""
    low, high = (row.value if end is None else end for end in (row.score.low, row.score.high))
    if guess or low > 0.5:
        return f"No better than {guess}" if guess else f"{'Nearly always' if low > 0.9 else 'Mostly'} {where}"
    if high >= 0.5 and abs(row.value - 0.5) > 0.1:
        return f"{'Sometimes' if row.value < 0.5 else 'Often'} {where}"
    return f"{'Less than' if high < 0.5 else 'About'} half{'' if row.answers else ' the time'}"


_STATE = {"words": ("words", "name"), "maps": ("map", "peaks on"), "boxes": ("boxes", "lie on")}
"""What states a side, by kind."""


def said(facts: Facts) -> Answer | None:
    """Say whether texts name the correct side, compared with maps or boxes; None if no text was scored."""
    kinds = {row.label: row.runs[0].words[0].kind for row in facts.words.rows}
    if not kinds:
        return None
    rows = tuple(row for row in facts.words.rows if kinds[row.label] == "words") or facts.words.rows
    found = replace(facts.words, rows=rows)
    head, kind, alone = found.head, kinds[found.head.label], len(found.models) == 1

    def side(name: str, place: int = 0) -> Estimate:
        return over_datasets([run.words[place].numbers[MACRO][f"side_{name}"] for run in head.runs])

    covered, prior, gain = (side(name) for name in ("coverage", "prior", "gain"))
    guess, known = ("texts of other images", side("excess")) if gain.value is None else ("the most common side", gain)
    useless = known.value is not None and (known.value if known.low is None else known.low) <= 0
    verdict = _verdict(head, "correct", guess * useless) if covered.value else "Silent"
    noun, verb = _STATE[kind]
    counts = [(n, run.number(found.number, name)) for run in head.runs for name, n in run.words[0].counts.items()]
    hits, over = sum(n * (one.value or 0.0) for n, one in counts), head.over
    of = f"{_percent(head)} of lesions{f' on average over {over}' if over else ''}"
    of += f" ({hits:,.0f} of {sum(n for n, _ in counts):,})"
    texts = [f"{verdict}: {f'its {noun}' if alone else f'the {noun} of {head.label}'} {verb} the correct side of {of}."]
    stated = f"A side is stated for {whole(covered.value)}% of lesions"
    if covered.value:
        right, opposite, chance = (f"{whole(side(name).value)}%" for name in ("accuracy", "opposite", "chance"))
        would = "would be correct in"
        others = f"texts of other images {would} {chance}"
        if prior.value is not None:
            others = f"the most common side {would} {whole(prior.value)}%, texts of other images in {chance}"
        stated += f": correct in {right} of these, opposite in {opposite}; {others}"
    does = "say where the lesion is" if kind == "words" else "look at the correct side"
    question = f"{f'Does {model_title(head.model)}' if alone else f'Do {in_words(len(found.models))} models'} {does}?"
    # Its own map or boxes, else those of the best other run.
    own = head.runs[0].words[1:] if all(run.words[1:] for run in head.runs) else ()
    beside = [(one.label, one.kind, side("joint", 1)) for one in own]
    beside += [(row.label, kinds[row.label], row.score) for row in facts.words.rows if kinds[row.label] != kind]
    for label, other, score in beside[: kind == "words"]:
        tests = [one for dataset in found.datasets for one in dataset.comparisons if one.number == found.number]
        p = next((one.p_adjusted for one in tests if {one.first, one.second} == {head.label, label}), None)
        p, (noun, verb) = p if len(found.datasets) == 1 else None, _STATE[other]
        lead = f"{(kind if head.value > (score.value or 0.0) else other).capitalize()} do better"
        lead = "Not tested" if p is None else "No significant difference" if p > SIGNIFICANT else lead
        names = f"the words of {head.label} name the correct side of {_percent(head)} of lesions"
        points = f"the {noun} of {label.removesuffix(f', {other}')} {verb} it for {whole(score.value)}%"
        texts.insert(0, f"{lead}: {names}, and {points} ({p_words(p)}).")
        question = f"Do words or {other} place the lesion better?"
    return Answer(question, *texts, f"{stated}.", _interval(found))


def _tie(found: Standings, verdict: str) -> Sentence:
    tied, few = found.tied, found.too_few_images
    every = len(tied) == len(found.rows)
    each = len(tied) < 4 and (few or not every)
    names = listed([row.label for row in tied])
    if every and not each:
        count = "both" if len(tied) == 2 else f"all {in_words(len(tied))}"
        names = f"{f'the {in_words(len(tied))}' if _kind(found) == 'models' else count} {_kind(found)}"
    rates = _rates(tied, listed) if each else _rates((tied[-1], tied[0]), " to ".join)
    end = "and these do not differ significantly" if every else "not significantly different"
    kinds, verb = {row.answers for row in tied}, "share first place with"
    if few or every:
        verb = "point at" if kinds == {""} else "score" if "" in kinds else "have"
    text = f"{'Too few images to tell' if few else verdict}: {names} {verb} {rates}, {end}."
    return Sentence(text, rates.partition(" of ")[0])


def _kind(found: Standings) -> str:
    return "models" if len(found.models) == len(found.tied) else "settings"


def _percent(row: Standing) -> str:
    return f"{whole(row.score.value)}%"


def _hits(row: Standing) -> str:
    return f"{row.hits:,.{0 if abs(row.hits - round(row.hits)) < 0.05 else 1}f}"


_UNITS = {"": "lesions", "boxes": "box area", "points": "points"}
"""What a score is a share of, by what a model answers with."""


def axis_title(found: Standings) -> str:
    """Return the title of the axis of a number."""
    if found.number != "pointing_game":
        return "AUROC, 50 is a coin flip" if found.number == "auroc" else "Lesions whose side is stated correctly, in %"
    kinds = {row.answers for row in found.rows}
    if kinds == {""}:
        return "Lesions that the model points at, in %"
    what = " or ".join({"": "peaks"}.get(kind, _UNITS[kind]) for kind in _UNITS if kind in kinds)
    return f"{what.capitalize()} on the lesion, in %"


def _located(row: Standing, more: str = "") -> str:
    """Return the predicate of a score: `points at 91% of lesions on average over eight findings (243 of 272)`."""
    over, percent = row.over, _percent(row)
    if row.answers:
        mean = f", on average over {over}" if over else ""
        share = f"{percent} of its {_UNITS[row.answers]} on the lesion"
        return f"has {share}{mean}{more} ({count_of(row.lesions, 'lesion')})"
    hits = f"{_hits(row)} of {row.lesions:,}"
    mean = f"{percent} of lesions on average over {over}{more} ({hits})"
    return f"points at {mean if over else f'{hits} lesions ({percent})'}"


def _rates(rows: Sequence[Standing], join: Callable[[Sequence[str]], str]) -> str:
    texts = ([*map(text, rows)] for text in (_percent, _hits))
    rates, hits = (of_rows if len({*of_rows}) > 1 else of_rows[:1] for of_rows in texts)
    over = rows[0].over
    kinds = {row.answers for row in rows}
    beside = f" ({join(hits)} of {rows[0].lesions:,})" if len({row.lesions for row in rows}) == 1 else ""
    of = "" if len(kinds) > 1 else f" of their {_UNITS[min(kinds)]} on the lesion" if any(kinds) else " of lesions"
    return f"{join(rates)}{of}{f' on average over {over}' if over else ''}{'' if any(kinds) else beside}"


def _interval(found: Standings) -> Sentence:
    score, runs = found.head.score, [run for dataset in found.datasets for run in dataset.runs]
    images = max(run.run.results.counts.images for run in runs)
    # Nobody should take a number of phantoms for one of patients.
    kind = "synthetic image" if {dataset.dataset for dataset in found.datasets} == {"phantom"} else "image"
    lesions = f"{count_of(found.head.lesions, 'lesion')} (all of one finding in an image count as one) in"
    texts, span = [f"Measured on {lesions} {count_of(images, kind)}, too few for an interval."], ""
    if score.low is not None and score.high is not None:
        span = f"from {whole(score.low)}% to {whole(score.high)}%"
        only = "only " if images < FEW_IMAGES else ""
        on = f"Measured on {only}{lesions} {count_of(images, kind)}{', so' if only else ','}"
        if len(found.datasets) > 1:
            on = f"Over {in_words(len(found.datasets))} datasets, each counting the same,"
        whose = "" if len(found.models) == 1 else f" of {found.head.label}"
        texts = [f"{on} the score{whose} could be anywhere {span} (95% interval)."]
    if found.floor is not None:
        does = found.floor.does
        guess = "Pointing at the middle of every image" if does.startswith("the middle") else does[0].upper() + does[1:]
        top = "" if found.head.answers else ", a perfect model 100%"
        if found.ceiling is not None and found.head.answers == "boxes":
            top = f", and boxes around the annotated outlines {whole(found.ceiling)}%"
        texts.append(f"{guess} would score {whole(found.floor.value)}%{top}.")
    if any(len(run.findings) > 1 for run in runs):
        texts.append("Every finding counts the same.")
    if found.head.answers:
        without = f"An image with the finding but without {found.head.answers} counts as 0"
        texts.append(f"{without}; images without the finding do not count.")
    return Sentence(" ".join(texts), span)


def _further(facts: Facts) -> Iterator[Sentence]:
    """Name the datasets, models, settings and missing tests that the answer depends on."""
    found, datasets = facts.pointing, facts.analysis.datasets
    alone = len(found.models) == 1
    scored = {label for dataset in datasets for label in dataset.values(found.number)}
    if len(found.datasets) < sum(bool(dataset.values(found.number)) for dataset in datasets):
        lead = f"Only on {listed([facts.analysis.heading(dataset) for dataset in found.datasets])}:"
        here = {label for dataset in found.datasets for label in dataset.values(found.number)}
        there = "not everything was scored on the other datasets"
        if missing := [label for label in facts.series if label in scored - here]:
            there = f"{listed(missing)} {'was' if len(missing) == 1 else 'were'} not scored there"
        yield Sentence(f"{lead} {there}.", lead)
    yield from _supervised(facts)
    spoken = {row.label for row in facts.words.rows}
    if blind := [label for label in facts.series if label not in scored | spoken]:
        look, they = ("looks", "it was") if len(blind) == 1 else ("look", "they were")
        yield Sentence(f"Nothing shows where {listed(blind)} {look}: {they} scored for recognition only.")
    guessing = [row for row in found.rows if found.at_floor(row)]
    if not alone and 0 < len(guessing) < len(found.rows):
        yield _at_the_floor(facts, guessing)
    if len(found.datasets) > 1:
        yield _by_dataset(found)
    elif alone and len(found.rows) > 1:
        yield _settings(found)
    if found.untested:
        names, lead = listed(found.untested), "No ranking:"
        first, pairs = found.rows[0].label, [one for dataset in found.datasets for one in dataset.comparisons]
        pairs = [one for one in pairs if one.number == found.number and first in (one.first, one.second)]
        why = " and ".join(sorted({one.untested for one in pairs if one.untested}))
        yield Sentence(f"{lead} {names} could not be tested against {first}{f': {why}' if why else ''}.", lead)


def _at_the_floor(facts: Facts, guessing: Sequence[Standing]) -> Sentence:
    found, floor = facts.pointing, facts.pointing.floor
    assert floor is not None
    unsure = [row for row in guessing if found.undecided(row)]
    sure = [row for row in guessing if row not in unsure]
    lowest, lead, texts = {row.label: row.score.low or 0.0 for row in facts.recognition.rows}, "", list[str]()
    if sure:
        who = "it recognizes" if len(sure) == 1 else "both recognize" if len(sure) == 2 else "each recognizes"
        aware = f", although {who} better than chance" * all(lowest.get(row.label, 0.0) > 0.5 for row in sure)
        lead = f"{in_words(len(sure)).capitalize()} {'is' if len(sure) == 1 else 'are'} at the floor:"
        names = f"{listed([row.label for row in sure])} {'does' if len(sure) == 1 else 'do'}"
        texts.append(f"{lead} {names} not score significantly more than {floor.does}{aware}.")
    if unsure:
        names = listed([f"{row.label} ({_percent(row)})" for row in unsure])
        than = f"{floor.does} ({whole(floor.value)}%)"
        texts.append(f"There are too few images to tell {names} from {than}.")
    return Sentence(" ".join(texts), lead)


def _supervised(facts: Facts) -> Iterator[Sentence]:
    """Say what supervised models score, their training data, and on which datasets a comparison is unfair."""
    scores = {row.label: f" scores {_percent(row)} and" for row in facts.pointing.rows}
    for label in (label for label, series in facts.series.items() if series.own):
        runs = [run.run for run in facts.analysis.runs if run.run.label == label]
        if trained_on := runs[0].trained_on:
            training = training_of(trained_on, *(run.dataset for run in runs))
            yield Sentence(f"{label}{scores.get(label, '')} was {training}.", "unfair")


def _by_dataset(found: Standings) -> Sentence:
    label, (low, title) = found.head.label, _by_title(found)[0]
    if len(found.rows) == 1:
        return Sentence(f"Lowest on {title} ({whole(low)}%).")
    of_datasets = [dataset.values(found.number) for dataset in found.datasets]
    ahead = sum(values[label] == max(values.values()) for values in of_datasets)
    lead = f"{label} is ahead on {ahead} of {len(of_datasets)} datasets, and"
    return Sentence(f"{lead} lowest on {title} ({whole(low)}%).", lead)


def _by_title(found: Standings) -> list[tuple[float, str]]:
    titles = [dataset_title(dataset.dataset) for dataset in found.datasets]
    scores = [run.macro[found.number].value or 0.0 for run in found.head.runs]
    return sorted(zip(scores, titles, strict=True))


def _settings(found: Standings) -> Sentence:
    """Say which settings change the score of the model's own settings, by the paired tests."""
    own, lead, texts = found.head, "", []
    tests = [test for dataset in found.datasets for test in dataset.comparisons if test.number == found.number]
    p_of = {frozenset((test.first, test.second)): test.p_adjusted for test in tests}
    p_values = [(row, p_of.get(frozenset((own.label, row.label)))) for row in found.rows if row is not own]
    changed = [row for row, p in p_values if p is not None and p <= SIGNIFICANT]
    same = [row for row, p in p_values if p is not None and p > SIGNIFICANT]
    untested = [row for row, p in p_values if p is None]

    def setting(row: Standing) -> str:
        return row.label.removeprefix(f"{own.label} (").removesuffix(")")

    def begin(rows: Sequence[Standing]) -> str:
        names = listed([setting(row) for row in rows])
        return f"{names[0].upper()}{names[1:]}"

    if changed:
        which = "setting changes" if len(changed) == 1 else "settings change"
        lead = f"{in_words(len(changed)).capitalize()} {which} where it points:"
        moves = [
            f"the score {'falls' if row.value < own.value else 'rises'} to {_percent(row)} ({setting(row)})"
            for row in changed
        ]
        texts.append(f"{lead} {listed(moves)}.")
    if same and changed:
        texts.append(f"{begin(same)} {'makes' if len(same) == 1 else 'make'} no significant difference.")
    elif same:
        span = " to ".join(dict.fromkeys((_percent(same[-1]), _percent(same[0]))))
        which = f"{in_words(len(same))} other settings score" if len(same) > 1 else "other setting scores"
        texts.append(f"In the pointing game, the {which} {span}, without a significant difference.")
    if untested:
        texts.append(f"{begin(untested)} could not be tested against it.")
    return Sentence(" ".join(texts), lead)


def _labels_only(facts: Facts, who: str) -> Answer:
    found = facts.recognition
    if not found.rows:
        return Answer(f"{who} look at the lesion?", "The runs scored no image.")
    best = found.rows[0]
    over = f", averaged over {in_words(len(found.datasets))} datasets" if len(found.datasets) > 1 else ""
    limits = ""
    if best.score.low is not None and best.score.high is not None:
        limits = f" ({whole(best.score.low)} to {whole(best.score.high)}, 95% interval)"
    whose = "AUROC is" if len(found.rows) == 1 else f"The highest AUROC is that of {best.label}:"
    return Answer(
        f"{who} recognize findings?",
        "These runs have no annotated regions or no maps, so they cannot show where the model looks.",
        Sentence(f"{whose} {whole(best.value)}{limits}{over}; a coin flip has 50.", whole(best.value)),
        *_supervised(facts),
    )


def what_was_run(facts: Facts) -> tuple[str, str]:
    """Return models and data of the report; narrow screens show only the second half."""
    analysis = facts.analysis
    models = count_of(len({run.run.model for run in analysis.runs}), "model")
    if len(analysis.datasets) != 1:
        return f"{models} on ", f"{count_of(len(analysis.datasets), 'dataset')}, {count_of(len(analysis.runs), 'run')}"
    (dataset,) = analysis.datasets
    settings = len(facts.shown.rows) if models == "1 model" else 0
    images = count_of(max((run.run.results.counts.images for run in dataset.runs), default=0), "image")
    of = f"{models}{f', {settings} settings' if settings > 1 else ''}, {count_of(len(dataset.findings), 'finding')}, "
    return of, f"{analysis.heading(dataset)}: {images}"


def averaged(found: Standings) -> str:
    """Return what the scores are means over: `8 findings`."""
    if len(found.datasets) > 1:
        return f"{len(found.datasets)} datasets"
    return count_of(found.head.findings, "finding")


def own_in_words(runs: Sequence[RunAnalysis]) -> str:
    """Return the models' own settings that labels leave out: `Demo: 224 px`."""
    told = {run.run.label: [setting_in_words(*one) for one in run.run.told_by.items()] for run in own_settings(runs)}
    return "; ".join(f"{label}: {', '.join(settings)}" for label, settings in told.items() if settings)


# The findings above the sections


def best(facts: Facts) -> Answer:
    """Name the best model and its weakest finding."""
    found, head, alone = facts.shown, facts.shown.head, len(facts.shown.rows) == 1
    known = ((head.runs[0].number(found.number, finding).value, finding) for finding in head.runs[0].findings)
    scores = sorted((value, finding) for value, finding in known if value is not None)
    (low, worst), (high, top) = scores[0], scores[-1]
    if found is facts.words:
        text = f"{top}: the correct side of {whole(high)}% of lesions. {worst} is the weakest: {whole(low)}%."
        return Answer(f"Which findings does {'it' if alone else head.label} place?", text if high else "None.")
    if found is not facts.pointing:
        if alone:
            text = f"AUROC is {whole(high)} for {top}{f', and {whole(low)} for {worst}' if len(scores) > 1 else ''}."
            return Answer("Which findings does it recognize best?", text)
        first, last = found.rows[0], found.rows[-1]
        text = f"{first.label} has the highest AUROC, {whole(first.value)}"
        return Answer("Who recognizes best?", f"{text}; {last.label} the lowest, {whole(last.value)}.")
    question, unit = f"Which {'model' if len(found.models) > 1 else 'setting'} grounds best?", _UNITS[head.answers]
    unit += " on the lesion" * bool(head.answers)
    if alone:
        question = "Which findings does it look at?"
    if len(found.datasets) > 1:
        return Answer(question, _by_dataset(found))
    if alone:
        best_ones = [finding for value, finding in scores if value == high]
        top = listed(best_ones) if len(best_ones) < 4 else f"{in_words(len(best_ones))} findings"
        each = " each" if len(best_ones) > 1 else ""
        text = f"Best: {top}, {whole(high)}% of {unit}{each}. Weakest: {worst}, {whole(low)}%."
        if len(scores) == 1:
            text = f"There is only one: {'it' if head.answers else 'its map'} {_located(head)}."
        return Answer(question, text if high else f"None: 0% of {unit} for every finding.")
    tied = [row.label for row in found.tied]
    who = f"The {in_words(len(tied))} {_kind(found)}" if len(tied) == len(found.rows) else listed(tied)
    text = f"{who} do not differ significantly in the pointing game"
    if found.too_few_images:
        text = f"Too few images to tell {listed(tied)} apart"
    elif len(tied) == 1:
        text = f"{found.rows[0].label} {'scores highest' if found.untested else 'is ahead of every other'}"
    weakest = f" The weakest finding of {head.label} is {worst}: {whole(low)}% of {unit}."
    weakest = weakest if high else f" {head.label} scores 0% on every finding."
    return Answer(question, f"{text}.{weakest if len(scores) > 1 else ''}")


def recognition(facts: Facts) -> Answer:
    """Say whether recognition predicts grounding, and how often a recognized lesion is missed."""
    explained = _explained(facts)
    missed = _recognised_elsewhere(facts.analysis.runs), chance_recognition(facts.analysis.runs)
    return Answer("Does recognition predict grounding?", *explained, *missed)


def chance_recognition(runs: Sequence[RunAnalysis]) -> str:
    """Name the findings with an AUROC not significantly above one half; empty without one."""
    runs = [run for run in runs if run.quadrants]
    outcomes = [(run, of) for run in runs for of in run.findings if run.number("auroc", of).value is not None]
    scores = [(finding, run.number("auroc", finding)) for run, finding in outcomes]
    low = [f"{of} (AUROC {whole(one.value)})" for of, one in scores if (one.low or 0.0) <= 0.5]
    where = f"{len(low)} of {len(outcomes)} {'findings' if len(runs) == 1 else 'pairs of run and finding'}"
    where = listed(low) if len(runs) == 1 and 0 < len(low) < 4 else where
    return f"Recognition is not proven for {where}: the interval of AUROC reaches 50 or less." if low else ""


def _explained(facts: Facts) -> tuple[str, ...]:
    if (line := facts.analysis.main_line) is None:
        return ("There are too few points to tell.",)
    xs, ys = [point[1] for point in line.points], [point[2] for point in line.points]
    low, high = whole(min(xs)), whole(max(xs))
    span = f"AUROC ranges from {low} to {high}" if low != high else f"AUROC is {high}"
    ends = [*dict.fromkeys((f"{whole(min(ys))}%", f"{whole(max(ys))}%"))]
    apart = f"the pointing game {f'from {ends[0]} to {ends[1]}' if len(ends) > 1 else f'is {ends[0]}'}"
    what = "model" if line.scope == "models" else "finding" if line.independent else "pair"
    alike = max(xs) - min(xs) < 0.05 <= max(ys) - min(ys)
    text = f"Not here. Every {what} is recognized about equally well: {span}, but {apart}."
    if line.r_squared is None:
        both = "an AUROC and a pointing game"
        few = f"Only {in_words(len(xs))} {what}{' has' if len(xs) == 1 else 's have'} {both}: too few to tell"
        return (text if alike else f"{few}. For {'it' if len(xs) == 1 else 'these'}, {span}, {apart}.",)
    p, points = line.p_in_words.replace(" ", "\u00a0"), f"{in_words(len(xs))} {what}s"
    if not line.independent:
        models = "one model" if line.models == 1 else f"{in_words(line.models)} models"
        points = f"{len(xs)} pairs of {'model' if line.models > 1 else 'dataset'} and finding, of {models}"
    explains = (
        f"Across {points}, AUROC explains {whole(line.r_squared)}% of the variation in the pointing game "
        f"(R\u00b2\u00a0{line.r_squared:.2f}{', ' if p else ''}{p})"
    )
    if alike:
        return text, f"{explains}."
    if not line.independent:
        return (f"Too few models to tell. {explains}; pairs of one model are not independent.",)
    # Of otherwise equal AUROCs, one far point alone sets R².
    far = max(line.points, key=lambda point: abs(point[1] - median(xs)))
    rest = [point[1] for point in line.points if point is not far]
    if len(rest) > 2 and max(rest) - min(rest) < 0.05:
        name = far[0].rpartition(" (")[0].partition(": ")[2] or far[0]  # of `Demo: Nodule (PhantomCXR)`, the finding
        alone = f"Every {what} but {name} is recognized about equally well"
        return (f"Too few points to tell. {alone}, so R\u00b2 ({line.r_squared:.2f}) depends on {name} alone.",)
    if line.p is not None and line.p > SIGNIFICANT and line.r_squared >= 0.1:
        return (f"Too few points to tell. {explains}, which could be chance with so few points.",)
    if line.slope is not None and line.slope < 0 and line.r_squared >= 0.3:
        return "The other way round: where AUROC is higher, the pointing game is lower.", f"{explains}."
    how = "Largely" if line.r_squared >= 0.6 else "In part" if line.r_squared >= 0.3 else "Hardly"
    return (f"{how}. {explains}.",)


def _recognised_elsewhere(runs: Sequence[RunAnalysis]) -> str:
    recognized, elsewhere = Counter[str](), Counter[str]()
    for run in runs:
        for of in run.quadrants.values():
            recognized[run.run.label] += round(of.count * (of.both + of.near_miss + of.elsewhere))
            elsewhere[run.run.label] += round(of.count * of.elsewhere)
    shares = sorted((elsewhere[label] / count, label) for label, count in recognized.items() if count)
    if not shares:
        return ""
    parts = [f"{elsewhere[of]:,} of {recognized[of]:,} ({100 * share:.1f}%) for {of}" for share, of in shares]
    missed = listed(parts) if len(parts) < 3 else f"between {parts[0]} and {parts[-1]}"
    nowhere = ", or left without a box" if any(run.run.results.answers and run.quadrants for run in runs) else ""
    by = f"by more than {100 * NEAR:g}% of the image's width{nowhere}"
    return f"Of the recognized lesions, {missed} were missed {by}."


def failures(facts: Facts) -> Answer:
    """Compare the smallest with the largest lesions, and name the findings at the floor."""
    question, found = "Where does it fail?", facts.pointing
    guesses = _guesses(facts, found.head)
    sized = [run for run in found.head.runs if len(run.areas) > 1]
    small, large = (over_datasets([run.areas[end].scores["pointing_game"] for run in sized]) for end in (0, -1))
    if small.value is None or large.value is None:
        nowhere = f"{_name(found, found.head)} scores 0% on every finding."
        return Answer(question, best(facts).answer if found.head.score.value else nowhere, guesses)
    count = [sum(run.areas[end].count for run in sized) for end in (0, -1)]
    titles = listed([dataset_title(run.run.dataset) for run in sized])
    unit = found.head.answers and f"of its {_UNITS[found.head.answers]} on the lesion for"
    text = (
        f"{_name(found, found.head)} {'has' if unit else 'points at'} {whole(small.value)}% {unit or 'of'} the "
        f"{count[0]} smallest lesions and {whole(large.value)}% {'for' if unit else 'of'} the {count[1]} largest"
        f"{f' on {titles}' if len(facts.analysis.datasets) > 1 else ''}"
        f"{', averaged over datasets' if len(sized) > 1 else ''}"
    )
    if abs(large.value - small.value) < 0.05:
        few = found.undecided(found.head)
        verdict = "Too few lesions to tell whether size matters" if few else "Size hardly matters"
        return Answer(question, f"{verdict}: {text}.", guesses)
    if not differ(small, large):
        return Answer(question, f"Size may matter: {text}, but this difference could be chance.", guesses)
    return Answer(question, f"On {'small' if small.value < large.value else 'large'} lesions: {text}.", guesses)


def _guesses(facts: Facts, row: Standing) -> str:
    where, number = [], facts.pointing.number
    for dataset, run in zip(facts.pointing.datasets, row.runs, strict=True):
        # A floor of the mean would mix findings that the middle of the image hits always with those it never hits.
        beaten = [one for one in run.findings if _at_most(run.number(number, one), dataset.floor(number, one))]
        if beaten:
            on = f" (on {facts.analysis.heading(dataset)})" if len(row.runs) > 1 else ""
            where.append(f"{listed(beaten)}{on}")
    name = _name(facts.pointing, row) if row is facts.pointing.head else row.label
    return f"On {listed(where)}, a rule that ignores the image scores as high as {name} or higher." if where else ""


def _at_most(score: Estimate, floor: Estimate, slack: float = 0.0) -> bool:
    return score.value is not None and floor.value is not None and score.value <= floor.value + slack


def _name(found: Standings, row: Standing) -> str:
    return model_title(row.model) if len(found.models) == 1 else row.label


def thresholds(facts: Facts) -> Answer | None:
    """Compare Dice at 0.5 with Dice at the best threshold; None without maps, because boxes need no threshold."""
    question, found, runs = "Can the thresholds be trusted?", facts.pointing, facts.analysis.runs
    swept = {run.run.label for run in runs if run.macro["dice_gap"].value is not None}
    row = next((row for row in (found.head, *found.rows) if row.label in swept), None)
    of_label = [run for run in runs if row is not None and run.run.label == row.label]
    keys = ("dice_gap", "dice_optimism", "dice_fixed", "dice_best")
    gap, optimism, fixed, best = (macro_mean([run.macro[key].value for run in of_label]) for key in keys)
    if row is None or gap is None or fixed is None or best is None:
        return None
    over = f", averaged over {in_words(len(of_label))} datasets" if len(of_label) > 1 else ""
    dice = f"the Dice of {_name(found, row)} is {100 * fixed:.1f}%"
    fair = "0.5 is a fair threshold" if best >= 0.2 else "Overlap is low at every threshold"
    costs = f"Using 0.5 for every finding costs {100 * gap:.1f} Dice points"
    verdict = costs if gap >= 0.05 or gap >= 0.2 * best else fair
    flatters = "Choosing the best threshold on the same images that are scored overstates Dice by"
    return Answer(
        question,
        f"{verdict}: {dice} at 0.5 and {100 * best:.1f}% at the best threshold of each finding{over}.",
        "" if optimism is None else f"{flatters} {100 * optimism:.1f} points.",
    )


def follows_words(facts: Facts) -> Answer | None:
    """Say whether the head model follows the words; None unless they were changed."""
    label = facts.shown.head.label if facts.shown.rows else ""
    for dataset in facts.shown.datasets:
        own = [row for row in dataset.rewordings if (row.label, row.number) == (label, "pointing_game")]
        rows = {row.wording: row for row in own}
        if rows:
            texts = [_reworded(rows[wording], *words) for wording, words in _IN_OTHER_WORDS.items() if wording in rows]
            where = f" on {facts.analysis.heading(dataset)}" if len(facts.analysis.datasets) > 1 else ""
            whose = label if len(facts.shown.models) > 1 else "the model"
            others = [row for row in dataset.rewordings if row.label != label and row.wording == "other"]
            texts += [_others([row for row in others if row.number == "pointing_game"])] if others else []
            return Answer(f"Does {whose} follow the words{where}?", *texts)
    return None


def _others(rows: Sequence[Rewording]) -> Sentence:
    moved = [row for row in rows if row.p_adjusted is not None and row.p_adjusted <= SIGNIFICANT]
    leave = [row.label for row in moved if (row.difference.value or 0.0) < 0]
    stay = [row.label for row in rows if row.label not in leave]
    texts = [f"{listed(leave)} {'follows' if len(leave) == 1 else 'follow'} the words too."] if leave else []
    texts += [f"{listed(stay)} {'does' if len(stay) == 1 else 'do'} not leave a region significantly."] if stay else []
    return Sentence(" ".join(texts))


_IN_OTHER_WORDS = {
    "other": ("asked for another region of the same image", "It follows them", "It does not follow them"),
    "negation": ("told that it is absent", "Negation matters", "Negation changes nothing"),
    "name": (
        "with the name of the finding alone",
        "The sentence matters",
        "The sentence adds nothing to the finding's name",
    ),
    "phrase": ("with the package's phrase for the finding", "The wording matters", "The package's phrase does as well"),
}


def _reworded(row: Rewording, what: str, changed: str, same: str) -> Sentence:
    difference, p = row.difference.value or 0.0, row.p_adjusted
    if p is not None and p <= SIGNIFICANT:
        # A model that points better at a region when it is told another one does not follow.
        lead, end = same if row.wording in ("other", "negation") and difference > 0 else changed, ""
    else:
        few = p is None or abs(difference) > FAR_APART
        lead, end = "Too few phrases to tell" if few else same, ", no significant difference"
    text = f"{lead}: {what}, it points at {whole(row.other.value)}% of these {row.pairs:,} regions"
    return Sentence(f"{text}, with the phrase itself at {whole(row.own.value)}%{end}.", lead)


def differences(facts: Facts) -> Answer:
    """Count the significant paired differences."""
    number = facts.words.number if facts.shown is facts.words else "pointing_game"
    question, what = "Are the differences real?", "in the sides stated"
    if number != "side_joint":
        what = f"in the {number.replace('_', ' ')}"
    pairs = [one for dataset in facts.analysis.datasets for one in dataset.comparisons if one.number == number]
    tested = [one.p_adjusted for one in pairs if one.p_adjusted is not None]
    real = sum(p <= SIGNIFICANT for p in tested)
    if not tested:
        return Answer(question, f"No difference {what} could be tested.")
    if len(tested) == 1:
        (pair,) = (one for one in pairs if one.p_adjusted is not None)
        both = {pair.first, pair.second}
        of_both = [one for of in facts.analysis.datasets for one in of.comparisons if {one.first, one.second} == both]
        if not any(one.difference.value for one in of_both):
            return Answer(question, f"On the {pair.images:,} images that both scored, their numbers are identical.")
        differ = "differ" if real else "do not differ"
        return Answer(question, f"{pair.first} and {pair.second} {differ} significantly {what}.")
    which = "All" if real == len(tested) else f"{in_words(real).capitalize() if real else 'Not one'} of the"
    verb = "is" if real in (0, 1) else "are"
    return Answer(question, f"{which} {in_words(len(tested))} differences {what} {verb} significant.")


def answered(analysis: Analysis) -> str:
    """Return the share of answers without a usable box of the worst model; empty without answers."""
    lost = [
        (1 - (answers.overall["answered"] or 0.0), run.run.label)
        for run in analysis.runs
        if (answers := run.run.results.answers) is not None and answers.overall["pairs"]
    ]
    if not lost:
        return ""
    most, label = max(lost)
    if most == 0:
        return "Every answer gives a box or a point that could be read"
    whose = f"{label}: " if len(lost) > 1 else ""
    return f"{whose}{whole(most)}% of answers give no box, cannot be read, or are cut off"


def order_of_protocols(analysis: Analysis) -> str:
    """Count the pairs of models whose order depends on the protocol."""
    turned, several = 0, False
    for dataset in analysis.datasets:
        several = several or any(len(one.values) > 1 for one in dataset.protocols)
        for pair in combinations({label for one in dataset.protocols for label in one.values}, 2):
            turned += len({lead > 0 for one in dataset.protocols if (lead := one.lead(*pair))}) > 1
    if turned:
        what = "models" if len({run.run.model for run in analysis.runs}) > 1 else "settings"
        return f"{count_of(turned, f'pair of {what} changes', f'pairs of {what} change')} order with the rule"
    return "All rules rank the models alike" if several else "Scored by other papers' rules"


def calibration(tables: Sequence[Table]) -> str:
    """Name the smallest calibration error, with that expected by chance; empty if not computed."""
    rows = [(table, row.cells) for table in tables if table.name.startswith("protocols_cal") for row in table.rows]
    if not rows:
        return ""
    table, (label, error, chance, *_) = min(rows, key=lambda row: row[1][1].value or 0.0)
    what = f"{'Smallest c' if len(rows) > 1 else 'C'}{table.title[1:]}".replace("alibration", "alibration error", 1)
    return f"{what}: {error.text}%, {label.text}; chance alone gives {chance.text}%"


# The report in plain text


def in_short(facts: Facts) -> tuple[str, ...]:
    """Return question and sentences of each section as plain text."""
    found, sections = facts.pointing, [best(facts)] if facts.shown.rows else []
    if found.rows:
        predicts = recognition(facts) if facts.recognition.rows else None
        sections += filter(None, [predicts, failures(facts), thresholds(facts)])
    if any(dataset.comparisons for dataset in facts.analysis.datasets):
        sections.append(differences(facts))
    sections += filter(None, [follows_words(facts), said(facts) if found.rows else None])
    texts = [" ".join([section.question, *section.texts]) for section in sections]
    guesses = (_guesses(facts, row) for row in found.rows if row is not found.head)
    return (*texts, *filter(None, (*guesses, _useless_dice(facts.analysis))))


def _useless_dice(analysis: Analysis) -> str:
    where = [
        f"{run.run.label} on {dataset_title(dataset.dataset)}"
        for dataset in analysis.datasets
        for floor in dataset.references
        if floor.title == "Whole image"
        for run in dataset.runs
        if _at_most(run.number("dice_best"), floor.number("dice_best"), 1e-4)
    ]
    what = "At the best threshold, Dice is no higher than for marking the whole image, so it does not show grounding"
    return f"{what}: {listed(where)}." if where else ""


def on_dataset(analysis: Analysis, dataset: DatasetAnalysis) -> tuple[str, ...]:
    """Return the sentences about one dataset of several, and its notes."""
    texts: list[str] = []
    if len(analysis.datasets) > 1:
        heading = analysis.heading(dataset)
        of_scopes = (*analysis.lines("models"), *analysis.lines("findings"))
        lines = [line for line, where in of_scopes if where == heading]
        facts = facts_of(replace(analysis, datasets=(dataset,), correlations=tuple(lines)))
        texts = [answer(facts).answer, *in_short(facts)]
    for reference in dataset.references:
        expected, spread = reference.number("pointing_game").value, reference.spread.get("pointing_game")
        if expected is not None and spread is not None:
            texts.append(
                f"Random maps have a pointing game of {100 * expected:.2f}% on average; single runs of random maps "
                f"have a standard deviation of {100 * spread:.2f} points."
            )
    return (*texts, *dataset.notes)
