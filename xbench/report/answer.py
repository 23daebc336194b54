"""The answer that a report opens with, and the finding above each of its sections: sentences that could be wrong.

Rates are in per cent, rounded half up; a lesion is a film with a finding and its region.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import floor

from xbench.report.names import dataset_title, model_title
from xbench.report.schema import Analysis, Correlation, Estimate, RunAnalysis, number_of
from xbench.report.sentences import beaten_findings, count_of, listed
from xbench.report.series import series_of
from xbench.report.standings import Standing, Standings, over_datasets, paired_test_of, standings
from xbench.report.statistics.paired import SIGNIFICANT

_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
FEW_FILMS = 500


@dataclass(frozen=True)
class Said:
    """A text, of which the page marks the first occurrence of `strong`."""

    text: str
    strong: str = ""

    @property
    def parts(self) -> tuple[str, str, str]:
        """The text before, in, and behind what is marked."""
        return self.text.partition(self.strong) if self.strong else (self.text, "", "")


@dataclass(frozen=True)
class Answer:
    """The question of a report, its answer in a sentence, and what else must be known: the interval first."""

    question: str
    answer: Said
    more: tuple[Said, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """Everything but the question, as plain text."""
        return (self.answer.text, *(said.text for said in self.more))


def whole(value: float | None) -> str:
    """Return a share in per cent, rounded half up to a whole number."""
    return "\u2013" if value is None else str(floor(100 * value + 0.5))


def in_words(number: int) -> str:
    """Return a count as a word up to twelve."""
    return _WORDS[number] if number < len(_WORDS) else f"{number:,}"


def answer(analysis: Analysis) -> Answer:
    """Answer the question of a report for one model or several, one setting or several, on one dataset or several."""
    found = standings(analysis)
    shown = found.rows or standings(analysis, "auroc").rows
    models = list(
        dict.fromkeys(row.series.model for row in shown) or {entry.run.model: None for entry in analysis.runs}
    )
    who = f"Does {model_title(models[0])}" if len(models) == 1 else f"Do {in_words(len(models))} models"
    if not models:
        return Answer(
            "Does the model look at the lesion, or only guess the label?",
            Said("No model was run: these are references, which show what a number is worth."),
        )
    if not found.rows:
        return _labels_only(analysis, who, len(models))
    question = f"{who} look at the lesion, or only guess the label?"
    if len(models) == 1:
        head, text = _one_model(found)
    else:
        head, text = _several_models(found, len(models))
    return Answer(question, text, (_interval(found, head, len(models)), *_further(analysis, found, head, len(models))))


def in_a_line(analysis: Analysis) -> str:
    """Return the answer as plain text, with the interval of the score that it is about."""
    said, found = answer(analysis), standings(analysis)
    if not found.rows:
        return " ".join(said.texts)
    head = head_of(found)
    if head.score.low is None or head.score.high is None:
        return said.answer.text
    whose = "" if len({row.series.model for row in found.rows}) == 1 else f" of {head.series.name}"
    interval = f"95% interval{whose} {whole(head.score.low)}% to {whole(head.score.high)}%"
    return f"{said.answer.text.removesuffix('.')}; {interval}."


def _one_model(found: Standings) -> tuple[Standing, Said]:
    own = next((row for row in found.rows if row.series.own), found.rows[0])
    points, strong = found.points(own.label), f"{whole(own.score.value)}%"
    if found.floor is not None and all(map(found.at_floor, found.rows)):
        text = (
            f"It guesses: {points} at {_rate(found, own)}. That is not significantly more often than "
            f"{found.floor.does} does ({whole(found.floor.value)}%)."
        )
        return own, Said(text, strong)
    if len(found.datasets) == 1:
        return own, Said(f"{verdict(found, own)}: {points} at {_rate(found, own)}.", strong)
    low, high = _extremes(found, own.label)
    return own, Said(f"{verdict(found, own)}: {points} at {_rate(found, own, f', from {low} to {high}')}.", strong)


def _several_models(found: Standings, models: int) -> tuple[Standing, Said]:
    best = found.rows[0]
    if found.floor is not None and all(map(found.at_floor, found.rows)):
        floor_rate = f"{whole(found.floor.value)}%"
        none = "no map" if all("map" in found.points(row.label) for row in found.rows) else "none"
        text = f"They guess: {none} points at lesions significantly more often than {found.floor.does} does"
        return best, Said(f"{text} ({floor_rate}).", floor_rate)
    says, tied = verdict(found, best), found.tied
    if len(tied) == len(found.rows) > 1:
        settings = "both" if len(tied) == 2 else f"all {in_words(len(tied))}"
        them = f"the {in_words(len(tied))} models" if models == len(tied) else f"{settings} settings"
        rates = _rates(found, tied[::-1], " to ".join)
        text = f"{says}: {them} point at {rates}, and no difference is significant."
        return best, Said(text, rates.partition(" of ")[0])
    if len(tied) > 1:
        names = listed([row.series.name for row in tied])
        rates = _rates(found, tied, listed) if len(tied) < 4 else _rates(found, tied[::-1], " to ".join)
        text = f"{says}: {names} share first place with {rates}, not significantly different."
        return best, Said(text, rates.partition(" of ")[0])
    strong = f"{whole(best.score.value)}%"
    if found.untested:
        return best, Said(f"{says}: the highest score is that of {best.series.name}, {_rate(found, best)}.", strong)
    return best, Said(f"{says}: the best, {best.series.name}, points at {_rate(found, best)}.", strong)


def verdict(found: Standings, row: Standing) -> str:
    """Return how often a map looks at the lesion, in words, by the interval of its score."""
    value = row.score.value or 0.0
    low, high = row.score.low, row.score.high
    low, high = value if low is None else low, value if high is None else high
    if found.floor is not None and low <= found.floor.value:
        return f"No better than {_pointing_at(found.floor.does)}"
    if high < 0.5:
        return "Less than half the time"
    if low <= 0.5:
        return "About half the time"
    return "Nearly always at the lesion" if low > 0.9 else "Mostly at the lesion"


def _pointing_at(does: str) -> str:
    return f"pointing at {does}" if does.startswith("the middle") else does


def _entries(found: Standings, row: Standing) -> list[RunAnalysis]:
    """Return the runs that a standing is the mean of, one on each dataset."""
    return [entry for dataset in found.datasets for entry in dataset.runs if entry.run.label == row.label]


def _mean_over(found: Standings, row: Standing) -> str:
    """Return what a score is a mean over: `eight findings`; empty where it is a share of one finding's lesions."""
    entries = _entries(found, row)
    findings = max(
        sum(number_of(entry, found.number, name).value is not None for name in entry.findings) for entry in entries
    )
    if len(entries) > 1:
        return f"{in_words(len(entries))} datasets{' and their findings' if findings > 1 else ''}"
    return f"{in_words(findings)} findings" if findings > 1 else ""


def _lesions(found: Standings, row: Standing) -> tuple[str, int]:
    """Return how many lesions are pointed at, each finding on a film as one, and of how many.

    Where places tie, and of boxes, a lesion counts by the share that lies in it.
    """
    images = [entry.run.images for entry in _entries(found, row)]
    hits = sum(float(one.pointing_hit[one.scored].sum()) for one in images)
    return f"{hits:,.{0 if abs(hits - round(hits)) < 0.05 else 1}f}", sum(int(one.scored.sum()) for one in images)


def _rate(found: Standings, row: Standing, more: str = "") -> str:
    """Return a rate with what it is: `91% on average over eight findings; 243 of 272 lesions`."""
    (hits, lesions), over = _lesions(found, row), _mean_over(found, row)
    if not over:
        return f"{hits} of {lesions:,} lesions ({whole(row.score.value)}%)"
    return f"{whole(row.score.value)}% on average over {over}{more}; {hits} of {lesions:,} lesions"


def _rates(found: Standings, rows: Sequence[Standing], join: Callable[[Sequence[str]], str]) -> str:
    """Return the rates of several as one text, with the lesions pointed at where all have as many."""
    rows = (rows[0], rows[-1]) if join is not listed else rows
    counts = [_lesions(found, row) for row in rows]
    over = " of lesions" + (f" on average over {_mean_over(found, rows[0])}" if _mean_over(found, rows[0]) else "")
    beside = (
        f" ({join(list(dict.fromkeys(hits for hits, _ in counts)))} of {counts[0][1]:,})"
        if len({n for _, n in counts}) == 1
        else ""
    )
    return f"{join(list(dict.fromkeys(f'{whole(row.score.value)}%' for row in rows)))}{over}{beside}"


def _interval(found: Standings, row: Standing, models: int) -> Said:
    films = max((run.run.results.counts.images for dataset in found.datasets for run in dataset.runs), default=0)
    # Nobody should take a number of phantoms for one of patients.
    kind = "synthetic film" if {dataset.dataset for dataset in found.datasets} == {"phantom"} else "film"
    whose = "its" if models == 1 else f"the rate of {row.series.name}"
    said = ""
    if row.score.low is None or row.score.high is None:
        span, said = "", f"Measured on {count_of(films, kind)}, too few for an interval. "
    else:
        span = f"from {whole(row.score.low)}% to {whole(row.score.high)}%"
        rate = "the rate" if models == 1 else whose
        if len(found.datasets) == 1 and films < FEW_FILMS:
            said = f"Measured on only {count_of(films, kind)}, so {rate} could be anywhere {span} (95% interval). "
        elif len(found.datasets) == 1:
            said = f"Measured on {films:,} {kind}s, {rate} could be anywhere {span} (95% interval). "
        else:
            over = f"Over {in_words(len(found.datasets))} datasets, each counting the same,"
            said = f"{over} {rate} could be anywhere {span} (95% interval). "
    bound = ""
    if found.floor is not None:
        does = found.floor.does
        guess = "Pointing at the middle of every film" if does.startswith("the middle") else does[0].upper() + does[1:]
        bound = f"{guess} would score {whole(found.floor.value)}%, perfection 100%."
    several = any(len(run.findings) > 1 for dataset in found.datasets for run in dataset.runs)
    return Said(f"{said}{bound}{' Every finding counts the same.' if several else ''}".strip(), span)


def _further(analysis: Analysis, found: Standings, head: Standing, models: int) -> Iterator[Said]:
    """Say what else the answer depends on: guessing models, datasets, settings, and what was not tested."""
    if len(found.datasets) < sum(bool(dataset.values(found.number)) for dataset in analysis.datasets):
        yield _shared(analysis, found)
    looking = {label for dataset in analysis.datasets for label in dataset.values(found.number)}
    blind = [series.name for label, series in series_of(analysis.runs).items() if label not in looking]
    if blind:
        look, they = ("looks", "it was") if len(blind) == 1 else ("look", "they were")
        yield Said(f"Nothing shows where {listed(blind)} {look}: {they} scored for recognition alone.")
    floored = [row for row in found.rows if found.at_floor(row)]
    if found.floor is not None and models > 1 and 0 < len(floored) < len(found.rows):
        yield _at_the_floor(analysis, found, floored)
    if len(found.datasets) > 1:
        yield _by_dataset(found, head)
    if models == 1 and len(found.rows) > 1 and len(found.datasets) == 1:
        yield _settings(found, head)
    if found.untested:
        yield Said(
            f"No ranking: {listed(found.untested)} could not be tested against {found.rows[0].series.name}. The notes "
            "say why.",
            "No ranking:",
        )


def _shared(analysis: Analysis, found: Standings) -> Said:
    """Say which datasets the answer is about where not all were scored alike."""
    where = listed([analysis.heading(dataset) for dataset in found.datasets])
    here = {label for dataset in found.datasets for label in dataset.values(found.number)}
    elsewhere = {label for dataset in analysis.datasets for label in dataset.values(found.number)} - here
    missing = [series.name for label, series in series_of(analysis.runs).items() if label in elsewhere]
    lead = f"Only on {where}:"
    if missing:
        return Said(f"{lead} {listed(missing)} {'was' if len(missing) == 1 else 'were'} not scored there.", lead)
    return Said(f"{lead} not everything was scored on the other datasets.", lead)


def _at_the_floor(analysis: Analysis, found: Standings, floored: Sequence[Standing]) -> Said:
    recognise = {row.label: row.score for row in standings(analysis, "auroc").rows}
    aware = [recognise.get(row.label, Estimate(None)).low for row in floored]
    though = "each recognises" if len(floored) > 2 else "both recognise" if len(floored) == 2 else "it recognises"
    better = f", although {though} better than chance" if all(low is not None and low > 0.5 for low in aware) else ""
    one = len(floored) == 1
    lead = f"{in_words(len(floored)).capitalize()} {'is' if one else 'are'} at the floor:"
    assert found.floor is not None
    text = f"{listed([row.series.name for row in floored])} {'points' if one else 'point'} at lesions "
    return Said(f"{lead} {text}not significantly more often than {found.floor.does} does{better}.", lead)


def _by_dataset(found: Standings, head: Standing) -> Said:
    ahead = 0
    for dataset in found.datasets:
        values = dataset.values("pointing_game")
        ahead += values[head.label] == max(values.values())
    low, title = min((one.values(found.number)[head.label], dataset_title(one.dataset)) for one in found.datasets)
    first = ""
    if len(found.rows) > 1:
        first = f"{head.series.name} is ahead on {ahead} of {len(found.datasets)} "
        first += "datasets, and"
    return Said(
        f"{first} lowest on {title} ({whole(low)}%).".strip().replace("lowest", "Lowest" if not first else "lowest", 1),
        first,
    )


def _extremes(found: Standings, label: str) -> tuple[str, str]:
    """Return the lowest and the highest score of a label on a dataset, as `12% (RSNA Pneumonia)`."""
    scores = sorted((dataset.values(found.number)[label], dataset_title(dataset.dataset)) for dataset in found.datasets)
    (low, first), (high, last) = scores[0], scores[-1]
    return f"{whole(low)}% ({first})", f"{whole(high)}% ({last})"


def _settings(found: Standings, own: Standing) -> Said:
    """Say which settings change the score of a model's own settings, by the paired tests."""
    (dataset,) = found.datasets
    changed: list[Standing] = []
    same: list[Standing] = []
    untested: list[Standing] = []
    for row in found.rows:
        if row is own:
            continue
        test = paired_test_of(dataset.comparisons, found.number, own.label, row.label)
        if test is None or test.p_adjusted is None:
            untested.append(row)
        else:
            (changed if test.p_adjusted <= SIGNIFICANT else same).append(row)
    lead, said = "", []
    if changed:
        which = "setting changes" if len(changed) == 1 else "settings change"
        lead = f"{in_words(len(changed)).capitalize()} {which} where it points:"
        moves = [
            f"{_at(row, own)} it {'falls' if (row.score.value or 0) < (own.score.value or 0) else 'rises'} to "
            f"{whole(row.score.value)}%"
            for row in changed
        ]
        said.append(f"{lead} {listed(moves)}.")
    if same and changed:
        verb = "makes" if len(same) == 1 else "make"
        names = listed([_setting(row, own) for row in same])
        said.append(f"{names[0].upper()}{names[1:]} {verb} no significant difference to that.")
    elif same:
        scores = [whole(row.score.value) for row in same]
        span = f"{scores[0]}%" if scores[0] == scores[-1] else f"{scores[-1]}% to {scores[0]}%"
        which = (
            f"None of the {in_words(len(same))} other settings makes a"
            if len(same) > 1
            else "The other setting makes no"
        )
        said.append(f"{which} significant difference to where it points ({span}).")
    if untested:
        names = listed([_setting(row, own) for row in untested])
        said.append(f"{names[0].upper()}{names[1:]} could not be tested against it.")
    return Said(" ".join(said), lead)


def _setting(row: Standing, own: Standing) -> str:
    """Return the part of a label that tells a setting from the model's own."""
    return row.label.removeprefix(f"{own.label} (").removesuffix(")")


def _at(row: Standing, own: Standing) -> str:
    words = _setting(row, own)
    return f"{'at' if words[0].isdigit() else 'with'} {words}"


def _labels_only(analysis: Analysis, who: str, models: int) -> Answer:
    found = standings(analysis, "auroc")
    if not found.rows:
        return Answer(f"{who} look at the lesion?", Said("The runs hold no scored film, so there is nothing to say."))
    best = found.rows[0]
    over = f", averaged over {in_words(len(found.datasets))} datasets" if len(found.datasets) > 1 else ""
    limits = ""
    if best.score.low is not None and best.score.high is not None:
        limits = f" ({whole(best.score.low)} to {whole(best.score.high)}, 95% interval)"
    whose = "AUROC is" if models == 1 and len(found.rows) == 1 else f"The highest AUROC is that of {best.series.name}:"
    return Answer(
        f"{who} recognise findings?",
        Said("These runs have no annotated regions or no maps, so they cannot show where the model looks."),
        (Said(f"{whose} {whole(best.score.value)}{limits}{over}; a coin flip has 50.", whole(best.score.value)),),
    )


# Findings above the sections


def best_finding(analysis: Analysis) -> Answer:
    """Say who grounds best, and where even the best does not; where nothing is grounded, what is recognised best."""
    found = standings(analysis)
    if not found.rows:
        return _best_recognised(standings(analysis, "auroc"))
    models = len({row.series.model for row in found.rows})
    question = (
        f"Which {'model' if models > 1 else 'setting'} grounds best?"
        if len(found.rows) > 1
        else "Which findings does it look at?"
    )
    head = found.rows[0] if models > 1 else next((row for row in found.rows if row.series.own), found.rows[0])
    if len(found.datasets) > 1:
        said = _by_dataset(found, head)
        return Answer(question, said)
    (dataset,) = found.datasets
    entry = next(entry for entry in dataset.runs if entry.run.label == head.label)
    scores = sorted(
        (value, finding)
        for finding, numbers in entry.findings.items()
        if (value := numbers.get("pointing_game", Estimate(None)).value) is not None
    )
    weakest = ""
    if len(scores) > 1:
        (low, worst), (high, top) = scores[0], scores[-1]
        if len(found.rows) == 1:
            return Answer(question, Said(f"{top}: {whole(high)}% of lesions. {worst} is the weakest: {whole(low)}%."))
        weakest = f" The weakest finding of {head.series.name} is {worst}: {whole(low)}% of lesions."
    if len(found.rows) == 1:
        return Answer(question, Said(f"There is only one: {found.points(head.label)} at {_rate(found, head)}."))
    tied = found.tied
    if len(tied) == len(found.rows):
        who = (
            f"No difference between {_both(len(tied))} {'models' if models == len(tied) else 'settings'} is significant"
        )
    elif len(tied) > 1:
        who = f"{listed([row.series.name for row in tied])} are tied by the pointing game"
    else:
        best = found.rows[0].series.name
        who = f"{best} {'scores highest' if found.untested else 'is ahead of every other'}"
    return Answer(question, Said(f"{who}.{weakest}"))


def _best_recognised(found: Standings) -> Answer:
    best, last = found.rows[0], found.rows[-1]
    if len(found.rows) > 1:
        text = f"{best.series.name} has the highest AUROC, {whole(best.score.value)}"
        text += f"; {last.series.name} the lowest, {whole(last.score.value)}."
        return Answer("Who recognises best?", Said(text))
    entry = next(entry for entry in found.datasets[0].runs if entry.run.label == best.label)
    scores = sorted(
        (value, finding)
        for finding, numbers in entry.findings.items()
        if (value := numbers.get("auroc", Estimate(None)).value) is not None
    )
    (low, worst), (high, top) = scores[0], scores[-1]
    text = f"AUROC is {whole(high)} for {top}" + (f", and {whole(low)} for {worst}." if len(scores) > 1 else ".")
    return Answer("Which findings does it recognise best?", Said(text))


def _both(count: int) -> str:
    return "both" if count == 2 else f"the {in_words(count)}"


def recognition_finding(analysis: Analysis) -> tuple[Answer, Correlation | None]:
    """Say whether recognition predicts grounding, and return the line behind it."""
    line = recognition_line(analysis)
    question = "Does recognition predict grounding?"
    if line is None:
        return Answer(question, Said("There are too few points to tell.")), None
    xs, ys = [point[1] for point in line.points], [point[2] for point in line.points]
    span = (
        f"AUROC {whole(min(xs))} to {whole(max(xs))}" if whole(min(xs)) != whole(max(xs)) else f"AUROC {whole(max(xs))}"
    )
    apart = f"{whole(min(ys))}% to {whole(max(ys))}% of lesions"
    what = "model" if line.scope == "models" else "finding" if line.independent else "pair"
    explains = ""
    if line.r_squared is not None:
        p = line.p_in_words.replace(" ", "\u00a0")
        fit = f"R\u00b2\u00a0{line.r_squared:.2f}{', ' if p else ''}{p}"
        points = f"{in_words(len(xs))} {what}s" if line.independent else _pairs(line)
        explains = f"Between {points}, AUROC explains {whole(line.r_squared)}% of the variation in the pointing game "
        explains += f"({fit})."
    if max(xs) - min(xs) < 0.05 and max(ys) - min(ys) >= 0.05:
        text = f"Not here. Every {what} is recognised about equally well ({span}), but the model points at {apart}."
    elif line.r_squared is None:
        return Answer(question, Said(f"{count_of(len(xs), 'point')} cannot tell: {span}, {apart}.")), line
    elif not line.independent:
        text, explains = (
            f"Too few models to tell. {explains.removesuffix('.')}; pairs of one model are not independent.",
            "",
        )
    elif line.p is not None and line.p > SIGNIFICANT and line.r_squared >= 0.1:
        text, explains = (
            f"Too few points to tell. {explains.removesuffix('.')}, which so few points could show by chance.",
            "",
        )
    elif line.slope is not None and line.slope < 0 and line.r_squared >= 0.3:
        text = "The other way round: where AUROC is higher, the model points at fewer lesions."
    else:
        how = "Largely" if line.r_squared >= 0.6 else "In part" if line.r_squared >= 0.3 else "Hardly"
        text = f"{how}. {explains}"
        explains = ""
    return Answer(question, Said(text), (Said(explains),) if explains else ()), line


def _pairs(line: Correlation) -> str:
    """Return how many points there are, of whom: `16 pairs of model and finding, of two models`."""
    models = "one model" if line.models == 1 else f"{in_words(line.models)} models"
    return f"{len(line.points)} pairs of {'model' if line.models > 1 else 'dataset'} and finding, of {models}"


def recognition_line(analysis: Analysis) -> Correlation | None:
    """Return the line over models where there are three or more, else over findings; over all datasets if several."""
    for scope, least in (("models", 3), ("findings", 1)):
        lines = [line for line in analysis.correlations if line.scope == scope and len(line.points) >= least]
        pooled = [line for line in lines if line.dataset is None] or lines[:1]
        if pooled:
            return pooled[0]
    return None


def failures_finding(analysis: Analysis) -> Answer:
    """Say whether small lesions are missed, and which findings nothing points at better than a guess."""
    question = "Where does it fail?"
    found = standings(analysis)
    head = head_of(found)
    entries = _entries(found, head)
    sized = [entry for entry in entries if len(entry.areas) > 1]
    small, large = (over_datasets([entry.areas[end].scores["pointing_game"] for entry in sized]) for end in (0, -1))
    more = tuple(_guesses(analysis, found, head))
    if small.value is None or large.value is None:
        return Answer(question, Said(f"By finding: {best_finding(analysis).answer.text}"), more)
    count = [sum(entry.areas[end].count for entry in sized) for end in (0, -1)]
    on = f" on {listed([dataset_title(entry.run.dataset) for entry in sized])}" if len(analysis.datasets) > 1 else ""
    rates = (
        f"{whole(small.value)}% of the {count[0]} smallest lesions and {whole(large.value)}% of the {count[1]} largest"
    )
    mean = ", averaged over datasets" if len(sized) > 1 else ""
    said = f"{_name(found, head)} points at {rates}{on}{mean}"
    few, many = sorted((small, large), key=lambda one: one.value or 0.0)
    if (many.value or 0.0) - (few.value or 0.0) < 0.05:
        return Answer(question, Said(f"Hardly by size: {said}."), more)
    if few.high is None or many.low is None or few.high >= many.low:
        return Answer(question, Said(f"Not clearly by size: {said}, and the intervals overlap."), more)
    return Answer(question, Said(f"On {'small' if few is small else 'large'} lesions: {said}."), more)


def _guesses(analysis: Analysis, found: Standings, head: Standing) -> Iterator[Said]:
    """Say on which findings the maps of a series point no better than one that ignores the film."""
    where = []
    for dataset in found.datasets:
        entry = next(entry for entry in dataset.runs if entry.run.label == head.label)
        beaten = beaten_findings(dataset, entry)
        if beaten:
            on = f" (on {analysis.heading(dataset)})" if len(found.datasets) > 1 else ""
            where.append(f"{listed(beaten)}{on}")
    if where:
        yield Said(f"On {listed(where)} a map that ignores the film does as well as {_name(found, head)}.")


def thresholds_finding(analysis: Analysis) -> Answer:
    """Say what the fixed threshold costs, and by how much the best one flatters."""
    question = "Can the thresholds be trusted?"
    found = standings(analysis)
    swept = {entry.run.label for entry in analysis.runs if entry.macro["dice_gap"].value is not None}
    head = next((row for row in (head_of(found), *found.rows) if row.label in swept), None)
    entries = [entry for entry in analysis.runs if head is not None and entry.run.label == head.label]
    gap, optimism = (_mean_of([entry.macro[key].value for entry in entries]) for key in ("dice_gap", "dice_optimism"))
    if head is None or gap is None:
        return Answer(question, Said("There is none to choose: boxes are one mask, and points have no area."))
    name = _name(found, head)
    points = f"{100 * gap:.0f} {'point' if f'{100 * gap:.0f}' == '1' else 'points'}"
    begin = "Not 0.5" if gap >= 0.05 else "0.5 is a fair choice"
    over = f", averaged over {in_words(len(entries))} datasets" if len(entries) > 1 else ""
    text = f"{begin}: there {name} loses {points} of Dice against the best threshold of each finding{over}."
    more = ""
    if optimism is not None:
        more = "Choosing the best threshold on the very films that are scored overstates Dice by "
        more += f"{100 * optimism:.1f} points."
    return Answer(question, Said(text), (Said(more),) if more else ())


def differences_finding(analysis: Analysis) -> Answer:
    """Say how many of the paired differences in the pointing game are significant."""
    question = "Are the differences real?"
    pairs = [one for dataset in analysis.datasets for one in dataset.comparisons if one.number == "pointing_game"]
    tested = [one.p_adjusted for one in pairs if one.p_adjusted is not None]
    real = sum(p <= SIGNIFICANT for p in tested)
    if not tested:
        return Answer(question, Said("No difference in the pointing game could be tested."))
    if len(tested) == 1:
        said = "" if real else "not "
        return Answer(question, Said(f"The one difference in the pointing game is {said}significant."))
    which = {0: "None", len(tested): "All"}.get(real, in_words(real).capitalize())
    verb = "is" if real in (0, 1) else "are"
    of = f"of the {in_words(len(tested))} differences in the pointing game"
    return Answer(question, Said(f"{which} {of} {verb} significant."))


def head_of(found: Standings) -> Standing:
    """Return the standing that a report is about: the own settings of one model, the best of several."""
    alone = len({row.series.model for row in found.rows}) == 1
    return next((row for row in found.rows if alone and row.series.own), found.rows[0])


def _name(found: Standings, head: Standing) -> str:
    alone = len({row.series.model for row in found.rows}) == 1
    return model_title(head.series.model) if alone else head.series.name


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
