"""An independent reader of bAbI's first ten tasks: answers from the words of the story alone."""

import re

MOVE = re.compile(r"(\w+) (?:moved|went|travelled|journeyed)(?: back)? to the (\w+)\.")
TAKE = re.compile(r"(\w+) (?:picked up|got|took|grabbed) the (\w+)(?: there)?\.")
DROP = re.compile(r"(\w+) (?:dropped|left|discarded|put down) the (\w+)(?: there)?\.")
GIVE = re.compile(r"(\w+) (?:gave|handed|passed) the (\w+) to (\w+)\.")
IS = re.compile(r"(\w+) is in the (\w+)\.")
NOT = re.compile(r"(\w+) is (?:not|no longer) in the (\w+)\.")
EITHER = re.compile(r"(\w+) is either in the (\w+) or the (\w+)\.")
SIDE = re.compile(r"The (\w+) is (\w+) of the (\w+)\.")
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}


def solve(facts, question):
    """The answer, or None where the story does not tell."""
    rooms, owner, path, gifts, sides = {}, {}, {}, [], set()
    for fact in facts:
        if m := MOVE.fullmatch(fact) or IS.fullmatch(fact):
            person, room = m.groups()
            rooms[person] = ("in", room)
            for thing in [t for t in owner if owner[t] == person]:
                path.setdefault(thing, []).append(room)
        elif m := NOT.fullmatch(fact):
            rooms[m[1]] = ("out", m[2])
        elif m := EITHER.fullmatch(fact):
            rooms[m[1]] = ("either", m[2], m[3])
        elif m := TAKE.fullmatch(fact):
            person, thing = m.groups()
            assert thing not in owner, "taken twice"
            owner[thing] = person
            here = rooms.get(person, ("?",))[-1]
            assert here == "?" or thing not in path or path[thing][-1] == here, "taken from afar"
            if here != "?" and thing not in path:
                path[thing] = [here]
        elif m := DROP.fullmatch(fact):
            assert owner.pop(m[2]) == m[1], "dropped by another"
        elif m := GIVE.fullmatch(fact):
            giver, thing, receiver = m.groups()
            assert owner.pop(thing) == giver, "given by another"
            owner[thing] = receiver
            gifts.append(m.groups())
        else:
            a, way, b = SIDE.fullmatch(fact).groups()
            sides |= {(a, way, b), (b, OPPOSITE[way], a)}
    return _answer(question, rooms, owner, path, gifts, sides)


def _answer(question, rooms, owner, path, gifts, sides):
    words = question.rstrip("?").split()
    match words:
        case ["Where", "is", "the", thing]:
            return path[thing][-1] if thing in path else None
        case ["Where", "is", person]:
            return rooms[person][1] if rooms[person][0] == "in" else None
        case ["Where", "was", "the", thing, "before", "the", room]:
            visits = path[thing]
            index = max(i for i, visit in enumerate(visits) if visit == room and i)
            return visits[index - 1]
        case ["What", "is", "the", room, way, "of"]:
            return only({b for a, w, b in sides if (a, w) == (room, way)})
        case ["What", "is", way, "of", "the", room]:
            return only({a for a, w, b in sides if (w, b) == (way, room)})
        case ["What", "did", giver, "give", "to", receiver]:
            return [g[1] for g in gifts if (g[0], g[2]) == (giver, receiver)][-1]
        case ["Who", "did", giver, "give", "the", thing, "to"]:
            return [g[2] for g in gifts if g[:2] == (giver, thing)][-1]
        case ["Who", "gave", "the", thing, "to", receiver]:
            return [g[0] for g in gifts if g[1:] == (thing, receiver)][-1]
        case ["Who", "gave", "the", thing]:
            return [g[0] for g in gifts if g[1] == thing][-1]
        case ["Who", "received", "the", thing]:
            return [g[2] for g in gifts if g[1] == thing][-1]
        case ["Is", person, "in", "the", room]:
            kind, *told = rooms[person]
            if kind == "either":
                return "maybe" if room in told else "no"
            return {"in": {True: "yes", False: "no"}, "out": {True: "no", False: None}}[kind][room in told]
        case ["How", "many", "objects", "is", person, "carrying"]:
            return ("none", "one", "two", "three")[sum(holder == person for holder in owner.values())]
        case ["What", "is", person, "carrying"]:
            return ",".join(thing for thing in owner if owner[thing] == person) or "nothing"


def only(answers):
    (answer,) = answers
    return answer
