"""bAbI's first ten tasks, told by the world of `babi_world` in place of the official files."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Sequence
from functools import partial

from titans.data.babi import LABELS, Story, check_task
from titans.data.babi_world import Actions, World

NUMBERS = ("none", "one", "two", "three")
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}


@dataclasses.dataclass(frozen=True)
class Asked:
    """A question about a world.

    Args:
        question: the question.
        answer: its answer.
        support: the facts that it rests on.
    """

    question: str
    answer: str
    support: Sequence[int]


def simulate(task: str, rng: random.Random) -> Story:
    """Make up a story.

    Args:
        task: qa1 to qa10.
        rng: decides everything.

    Returns:
        The story; its wording and answers are bAbI's, its length and what happens how often are similar.

    Raises:
        TitansError: there is no such task.
    """
    return simulate_questions(task, rng, 1)[0]


def simulate_questions(task: str, rng: random.Random, most: int) -> list[Story]:
    """Make up one story with several questions, for training: answers to learn from are otherwise rare.

    Args:
        task: qa1 to qa10.
        rng: decides everything.
        most: questions to try; those that come up again are left out.

    Returns:
        Stories with the same facts, each with another question, at least one.

    Raises:
        TitansError: there is no such task.
    """
    check_task(task)
    facts, ask = _directions(rng) if task == "qa4" else _world(_SETTINGS[task], rng)
    asked = {one.question: one for one in (ask() for _ in range(most))}
    return [Story(facts, one.question, one.answer, tuple(one.support)) for one in asked.values()]


def _world(setting: _Setting, rng: random.Random) -> tuple[tuple[str, ...], Callable[[], Asked]]:
    """Let things happen until something can be asked; returns the facts, and what asks."""
    while True:
        world = World(rng, setting.people, setting.rooms, setting.objects)
        for _ in range(rng.randint(*setting.facts)):
            world.step(setting.actions)
        first = setting.ask(world)
        if first is not None:
            asked = itertools.chain([first], iter(partial(setting.ask, world), None))
            return tuple(world.facts), partial(next, asked)


def _where_is_who(world: World) -> Asked | None:
    person, told = world.rng.choice(list(world.told.items()))
    return Asked(f"Where is {person}?", str(told.room), (told.fact,))


def _where_is_what(world: World) -> Asked | None:
    placed = [thing for thing, journey in world.journeys.items() if journey]
    if not placed:
        return None
    thing = world.rng.choice(placed)
    return Asked(f"Where is the {thing}?", world.journeys[thing][-1].room, (world.touched[thing], world.found[thing]))


def _where_was(world: World) -> Asked | None:
    """Ask where an object was before its last visit to a room."""
    travelled = [thing for thing, journey in world.journeys.items() if len(journey) > 1]
    if not travelled:
        return None
    thing = world.rng.choice(travelled)
    journey = world.journeys[thing]
    last = {visit.room: index for index, visit in enumerate(journey) if index}
    room, index = world.rng.choice(list(last.items()))
    before = journey[index - 1]
    support = (world.touched[thing], journey[index].fact, before.fact)
    return Asked(f"Where was the {thing} before the {room}?", before.room, support)


def _gifts(world: World) -> Asked | None:
    """Ask for one of the three of a gift, of which the last that fits the question counts."""
    if not world.gifts:
        return None
    gift = world.rng.choice(world.gifts[-3:])
    giver, thing, receiver = gift.giver, gift.thing, gift.receiver
    question, known, wanted = world.rng.choice(
        (
            (f"What did {giver} give to {receiver}?", ("giver", "receiver"), "thing"),
            (f"Who did {giver} give the {thing} to?", ("giver", "thing"), "receiver"),
            (f"Who gave the {thing} to {receiver}?", ("thing", "receiver"), "giver"),
            (f"Who gave the {thing}?", ("thing",), "giver"),
            (f"Who received the {thing}?", ("thing",), "receiver"),
        )
    )
    last = next(
        other for other in reversed(world.gifts) if all(getattr(other, part) == getattr(gift, part) for part in known)
    )
    return Asked(question, getattr(last, wanted), (last.fact,))


def _is_who_in(world: World) -> Asked | None:
    """Ask whether somebody is in a room: one that they are in, are not in, or may be in; each as often as it can be."""
    if not world.told:
        return None
    person, told = world.rng.choice(list(world.told.items()))
    possible = sorted(told.rooms)
    impossible = [room for room in world.rooms if room not in told.rooms]
    answers = {"no": impossible, "yes" if told.room else "maybe": possible}
    if len(possible) > 2:  # where it was told only where they are not, all else is open
        del answers["maybe"]
    answer = world.rng.choice(list(answers))
    return Asked(f"Is {person} in the {world.rng.choice(answers[answer])}?", answer, (told.fact,))


def _who_handled(world: World) -> str | None:
    return world.rng.choice([person for person, facts in world.handled.items() if facts] or [None])


def _how_many(world: World) -> Asked | None:
    person = _who_handled(world)
    if person is None:
        return None
    count = NUMBERS[len(world.carried(person))]
    return Asked(f"How many objects is {person} carrying?", count, world.handled[person])


def _what_carried(world: World) -> Asked | None:
    person = _who_handled(world)
    if person is None:
        return None
    things = ",".join(world.carried(person)) or "nothing"
    return Asked(f"What is {person} carrying?", things, world.handled[person])


def _directions(rng: random.Random) -> tuple[tuple[str, ...], Callable[[], Asked]]:
    """Tell of three rooms in a line how the middle one lies to the others; returns the facts, and what asks."""
    rooms = rng.sample(LABELS["qa4"], 3)
    way = rng.choice(list(OPPOSITE))
    pairs = [(rooms[0], rooms[1]), (rooms[1], rooms[2])]  # each is `way` of the next
    rng.shuffle(pairs)
    facts = tuple(
        f"The {a} is {way} of the {b}." if rng.random() < 0.5 else f"The {b} is {OPPOSITE[way]} of the {a}."
        for a, b in pairs
    )
    return facts, partial(_which_way, pairs, way, rng)


def _which_way(pairs: Sequence[tuple[str, str]], way: str, rng: random.Random) -> Asked:
    """Ask for one of the rooms of a pair, of which the first is `way` of the second."""
    number = rng.randrange(2)
    a, b = pairs[number]
    if rng.random() < 0.5:
        a, b, way = b, a, OPPOSITE[way]
    if rng.random() < 0.5:
        return Asked(f"What is {way} of the {b}?", a, (number,))
    return Asked(f"What is the {a} {way} of?", b, (number,))


_FRIENDS = ("Daniel", "John", "Mary", "Sandra")
_GIVERS = ("Bill", "Fred", "Jeff", "Mary")
_OTHERS = ("Bill", "Fred", "Julie", "Mary")
_THINGS = ("apple", "football", "milk")
_TOWN = ("bedroom", "cinema", "kitchen", "office", "park", "school")
_CARRYING: Actions = {World.move: 0.6, World.take: 0.25, World.drop: 0.15}
_HANDING: Actions = {World.move: 0.4, World.take: 0.25, World.drop: 0.1, World.give: 0.25}


@dataclasses.dataclass(frozen=True)
class _Setting:
    """What a task takes place with; actions and how often to try each; fewest and most facts; what is asked."""

    actions: Actions
    facts: tuple[int, int]
    ask: Callable[[World], Asked | None]
    people: Sequence[str] = _FRIENDS
    rooms: Sequence[str] = LABELS["qa1"]
    objects: Sequence[str] = ()


_SETTINGS = {
    "qa1": _Setting({World.move: 1.0}, (2, 10), _where_is_who),
    "qa2": _Setting(_CARRYING, (4, 30), _where_is_what, objects=_THINGS),
    "qa3": _Setting(_CARRYING, (8, 70), _where_was, objects=_THINGS),
    "qa5": _Setting(_HANDING, (4, 30), _gifts, people=_GIVERS, objects=_THINGS),
    "qa6": _Setting({World.move: 0.8, World.take: 0.1, World.drop: 0.1}, (2, 15), _is_who_in, objects=_THINGS),
    "qa7": _Setting(_HANDING, (2, 20), _how_many, objects=_THINGS),
    "qa8": _Setting(_CARRYING, (2, 20), _what_carried, objects=_THINGS),
    "qa9": _Setting({World.move: 0.4, World.state: 0.2, World.deny: 0.4}, (2, 10), _is_who_in),
    "qa10": _Setting({World.move: 0.3, World.state: 0.3, World.waver: 0.4}, (2, 10), _is_who_in, _OTHERS, _TOWN),
}
