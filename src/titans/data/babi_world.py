"""A small world of people, rooms and objects that tells what happens in it in the words of bAbI."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence

GOING = ("moved to", "went to", "travelled to", "went back to", "journeyed to")
TAKING = ("picked up", "got", "took", "grabbed")
DROPPING = ("dropped", "left", "discarded", "put down")
GIVING = ("gave", "handed", "passed")
DENYING = ("is not in", "is no longer in")
Actions = Mapping[Callable[["World"], bool], float]
"""Methods of a world that let something happen, and how often to try each."""

THERE = 0.2  # share of the takings and droppings that end in "there", as in the official third task


@dataclasses.dataclass(frozen=True)
class Whereabouts:
    """What was last told about a person's place.

    Args:
        fact: the fact that told it.
        rooms: where the person can be; one room if it is certain.
    """

    fact: int
    rooms: frozenset[str]

    @property
    def room(self) -> str | None:
        """The room, if it is certain."""
        return next(iter(self.rooms)) if len(self.rooms) == 1 else None


@dataclasses.dataclass(frozen=True)
class Visit:
    """A room in which an object was, as the facts tell it.

    Args:
        fact: the move that brought it there, or that of who found it there.
        room: the room.
    """

    fact: int
    room: str


@dataclasses.dataclass(frozen=True)
class Gift:
    """One handing over.

    Args:
        fact: the fact that tells it.
        giver: who gave.
        thing: what.
        receiver: to whom.
    """

    fact: int
    giver: str
    thing: str
    receiver: str


class World:
    """Where everybody and everything is, and what the facts told so far say of it.

    People do only what they can: they take what lies in their room and give to those who are in it. The facts need not
    tell all: somebody may take an object before it was told where. Each action draws who does it and returns whether
    anybody could.

    Args:
        rng: of all that is random.
        people: their names.
        rooms: where they can be.
        objects: what they can carry.
    """

    def __init__(
        self, rng: random.Random, people: Sequence[str], rooms: Sequence[str], objects: Sequence[str] = ()
    ) -> None:
        self.rng, self.people, self.rooms = rng, people, rooms
        self.facts: list[str] = []
        self.told: dict[str, Whereabouts] = {}
        self.journeys: dict[str, list[Visit]] = {thing: [] for thing in objects}
        self.carriers: dict[str, str] = {}  # of each carried object, in the order they came by them
        self.handled: dict[str, list[int]] = {person: [] for person in people}  # facts in which they held something
        self.touched: dict[str, int] = {}  # the last fact in which an object was taken, dropped or given
        self.found: dict[str, int] = {}  # the fact that tells the room of who last held an object
        self.gifts: list[Gift] = []
        self._room = {person: rng.choice(rooms) for person in people}
        self._lies = {thing: rng.choice(rooms) for thing in objects}

    def step(self, actions: Actions) -> None:
        """Let one thing happen.

        Args:
            actions: what to try; one of them must always be possible.
        """
        while not self.rng.choices(list(actions), list(actions.values()))[0](self):
            pass

    def carried(self, person: str) -> list[str]:
        """What a person carries, in the order they came by it."""
        return [thing for thing, carrier in self.carriers.items() if carrier == person]

    def move(self) -> bool:
        """Somebody goes to another room, with all they carry."""
        person = self.rng.choice(self.people)
        room = self._go(person)
        fact = self._tell(f"{person} {self.rng.choice(GOING)} the {room}.")
        self.told[person] = Whereabouts(fact, frozenset((room,)))
        for thing in self.carried(person):
            self.journeys[thing].append(Visit(fact, room))
            self.found[thing] = fact
        return True

    def take(self) -> bool:
        """Somebody picks up an object; if its room was told, then somebody whose room was told too."""
        able = [
            (person, thing)
            for thing, room in self._lies.items()
            for person in self.people
            if self._room[person] == room and (not self.journeys[thing] or self._known(person) is not None)
        ]
        if not able:
            return False
        person, thing = self.rng.choice(able)
        del self._lies[thing]
        self.carriers[thing] = person
        fact = self._tell(f"{person} {self.rng.choice(TAKING)} the {thing}{self._there()}.")
        self._touch(fact, thing, person)
        told = self._known(person)
        if told is not None:
            self.found[thing] = told.fact
            if not self.journeys[thing]:
                self.journeys[thing].append(Visit(told.fact, self._room[person]))
        return True

    def drop(self) -> bool:
        """Somebody puts down an object."""
        if not self.carriers:
            return False
        thing, person = self.rng.choice(list(self.carriers.items()))
        del self.carriers[thing]
        self._lies[thing] = self._room[person]
        self._touch(self._tell(f"{person} {self.rng.choice(DROPPING)} the {thing}{self._there()}."), thing, person)
        return True

    def give(self) -> bool:
        """Somebody hands an object to somebody in the same room."""
        able = [
            (giver, thing, other)
            for thing, giver in self.carriers.items()
            for other in self.people
            if other != giver and self._room[other] == self._room[giver]
        ]
        if not able:
            return False
        giver, thing, receiver = self.rng.choice(able)
        del self.carriers[thing]
        self.carriers[thing] = receiver
        fact = self._tell(f"{giver} {self.rng.choice(GIVING)} the {thing} to {receiver}.")
        self._touch(fact, thing, giver, receiver)
        self.gifts.append(Gift(fact, giver, thing, receiver))
        return True

    def state(self) -> bool:
        """It is told where somebody is, who may have moved meanwhile."""
        person = self.rng.choice(self.people)
        room = self._go(person)
        self.told[person] = Whereabouts(self._tell(f"{person} is in the {room}."), frozenset((room,)))
        return True

    def deny(self) -> bool:
        """It is told where somebody is not: no longer, where it was told that they were."""
        person = self.rng.choice(self.people)
        known = self._known(person)
        if known is not None:
            room, verb = self._room[person], DENYING[1]
            self._go(person)
        else:
            room = self.rng.choice([room for room in self.rooms if room != self._room[person]])
            verb = self.rng.choice(DENYING)
        fact = self._tell(f"{person} {verb} the {room}.")
        self.told[person] = Whereabouts(fact, frozenset(other for other in self.rooms if other != room))
        return True

    def waver(self) -> bool:
        """It is told of two rooms that somebody is in one of them."""
        person = self.rng.choice(self.people)
        other = self._room[person]
        rooms = [self._go(person), other]
        self.rng.shuffle(rooms)
        fact = self._tell(f"{person} is either in the {rooms[0]} or the {rooms[1]}.")
        self.told[person] = Whereabouts(fact, frozenset(rooms))
        return True

    def _tell(self, fact: str) -> int:
        self.facts.append(fact)
        return len(self.facts) - 1

    def _go(self, person: str) -> str:
        self._room[person] = self.rng.choice([room for room in self.rooms if room != self._room[person]])
        return self._room[person]

    def _known(self, person: str) -> Whereabouts | None:
        told = self.told.get(person)
        return told if told is not None and told.room is not None else None

    def _there(self) -> str:
        return " there" if self.rng.random() < THERE else ""

    def _touch(self, fact: int, thing: str, *people: str) -> None:
        self.touched[thing] = fact
        for person in people:
            self.handled[person].append(fact)
