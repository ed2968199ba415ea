"""Compiled loops of the English analysis of texts in UTF-8, words and stems, and of counting terms.

Every distinct word is stemmed once: a table maps the words seen so far, apart from the case of ASCII letters, to terms.
The loops release Python's global lock; each thread has its own tables.
"""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hybrid_cli.lexical.compilation import jit as _jit
from hybrid_cli.lexical.word_rules import Rules, Table

_inner = partial(_jit, no_cpython_wrapper=True)
Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int32]
Longs: TypeAlias = npt.NDArray[np.int64]

_UNITS = 255  # UTF-16 code units of a word; Lucene splits longer ones
_BYTES = 4 * _UNITS
_SEED, _FACTOR = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # of the hash FNV-1a
_VOWELS = (97, 101, 105, 111, 117)
_QUOTES = (0x27, 0x2019, 0xFF07)
_A, _B, _D, _E, _G, _I, _L, _N, _O, _S, _T, _W, _X, _Y, _Z = (ord(letter) for letter in "abdegilnostwxyz")


@_jit
def number(  # type: ignore[no-untyped-def]
    data: Bytes, offsets: Longs, rules: Rules, words: Table, terms: Table, tokens: Ints, lengths: Longs
):
    """Number the terms of texts.

    Args:
        data: texts in UTF-8.
        offsets: [n+1] start of each text.
        rules: rules of words and stems.
        words: the distinct words so far; the value of a word is its term, -1 for a stop word.
        terms: the distinct terms so far.
        tokens: array for the term of each token, text by text.
        lengths: [n] filled with the number of tokens of each text.

    Returns:
        words, terms and tokens, as larger arrays if necessary; the number of tokens.
    """
    word, units = np.empty(4 * _UNITS, np.uint8), np.empty(_UNITS + 8, np.uint16)
    consonants, size = np.empty(len(units), np.bool_), np.int64(0)  # a literal would compile the callee twice
    for text in range(len(offsets) - 1):
        begin, at, end = size, offsets[text], offsets[text + 1]
        while at < end:
            at, stop, size, slot = _number_known(data, at, end, rules, words, tokens, size, word)
            if size == len(tokens):
                tokens = _larger(tokens)
            if stop == at:
                continue
            row, length = words.size[0], stop - at
            words = _added(words, word, length, slot)
            length = _term(word, length, rules, units, consonants)
            if length:
                slot = _slot(terms, word, length)
                words.values[row] = terms.slots[slot]
                if words.values[row] < 0:
                    words.values[row] = terms.size[0]
                    terms = _added(terms, word, length, slot)
        lengths[text] = size - begin
    return words, terms, tokens, size


@_jit
def count(tokens: Ints, lengths: Longs, places: Ints, distinct: Longs, terms: Ints, tfs: Ints):  # type: ignore[no-untyped-def]
    """Count the terms of each text.

    Args:
        tokens: term of each token, text by text.
        lengths: [n] number of tokens of each text.
        places: [V] any integers; changed.
        distinct: [n] filled with the number of distinct terms of each text.
        terms, tfs: [tokens] filled with the terms and term frequencies, text by text, in the order of first tokens.

    Returns:
        The number of postings.
    """
    at, size = 0, 0
    for text in range(len(lengths)):
        begin = size
        for token in range(at, at + lengths[text]):
            term = tokens[token]
            place = places[term]
            if begin <= place < size and terms[place] == term:
                tfs[place] += 1
            else:
                terms[size], tfs[size], places[term] = term, 1, size
                size += 1
        at += lengths[text]
        distinct[text] = size - begin
    return size


# ------------------------------------------------------------------------------------------------------------- words


@_inner
def _number_known(data, at, end, rules, words, tokens, size, word):  # type: ignore[no-untyped-def]
    """Number tokens until the first new word, or until `tokens` is full: one long loop, as calls cost more than it.

    Returns:
        at, stop: begin and end of the new word, which `word` receives with ASCII letters in lower case; else the same.
        size: number of tokens.
        slot: slot of the new word.
    """
    kinds, steps, ends = rules.kinds, rules.steps, rules.ends
    slots, starts, letters, values = words.slots, words.ends, words.letters, words.values
    last, slot = np.uint64(len(slots) - 1), np.uint64(0)
    while at < end and size < len(tokens):
        state, units, stop, read = steps[0, kinds[data[at]]] if data[at] < 0x80 else np.int16(0), 0, at, at
        if state < 0:
            at += 1
            continue
        state = np.int16(0)
        while read < end:
            code, width = np.int64(data[read]), 1
            if code >= 0x80:
                width = _width(data[read])
                code = _code(data, read, width)
            units += 1 + (width == 4)
            state = steps[state, kinds[code]]
            if state < 0 or units > _UNITS:
                break
            read += width
            if ends[state]:
                stop = read
        if stop == at:
            at += _width(data[at])
            continue
        key, length = _SEED, stop - at
        for i in range(length):
            byte = data[at + i]
            if 65 <= byte <= 90:
                byte = np.uint8(byte + 32)
            word[i] = byte
            key = (key ^ np.uint64(byte)) * _FACTOR
        slot = (key ^ (key >> np.uint64(32))) & last
        row = slots[slot]
        while row >= 0:
            begin = starts[row]
            if starts[row + 1] - begin == length:
                i = 0
                while i < length and letters[begin + i] == word[i]:
                    i += 1
                if i == length:
                    break
            slot = (slot + np.uint64(1)) & last
            row = slots[slot]
        if row < 0:
            return at, stop, size, slot
        at = stop
        if values[row] >= 0:
            tokens[size] = values[row]
            size += 1
    return at, at, size, slot


@_inner
def _width(first):  # type: ignore[no-untyped-def]
    """Return the bytes of a character by its first byte."""
    if first < 0xC0:
        return 1
    return 2 + (first >= 0xE0) + (first >= 0xF0)


@_inner
def _code(data, at, width):  # type: ignore[no-untyped-def]
    """Return the code point of a character of two bytes or more."""
    code = np.int64(data[at]) & (0xFF >> (width + 1))
    for i in range(1, width):
        code = (code << 6) | (np.int64(data[at + i]) & 0x3F)
    return code


@_inner
def _key(word, length):  # type: ignore[no-untyped-def]
    """Return the key of a word, as in `_number_known`."""
    key = _SEED
    for i in range(length):
        key = (key ^ np.uint64(word[i])) * _FACTOR
    return key ^ (key >> np.uint64(32))


# ------------------------------------------------------------------------------------------------------------- tables


@_inner
def _slot(table, word, length):  # type: ignore[no-untyped-def]
    """Return the slot of a word, or the empty slot where it belongs."""
    last = np.uint64(len(table.slots) - 1)
    slot = _key(word, length) & last
    while table.slots[slot] >= 0:
        begin, end = table.ends[table.slots[slot]], table.ends[table.slots[slot] + 1]
        if end - begin == length:
            i = 0
            while i < length and table.letters[begin + i] == word[i]:
                i += 1
            if i == length:
                break
        slot = (slot + np.uint64(1)) & last
    return slot


@_inner
def _added(table, word, length, slot):  # type: ignore[no-untyped-def]
    """Return a table with a word in an empty slot: the same arrays, or larger ones."""
    row = table.size[0]
    slots, ends, letters, values = table.slots, table.ends, table.letters, table.values
    if row == len(values):
        ends, values = _larger(ends), _larger(values)
    while ends[row] + length > len(letters):
        letters = _larger(letters)
    for i in range(length):
        letters[ends[row] + i] = word[i]
    ends[row + 1] = ends[row] + length
    values[row] = -1
    slots[slot] = row
    table.size[0] = row + 1
    if 2 * (row + 1) > len(slots):
        slots = np.empty(2 * len(slots), np.int32)
        slots[:] = -1
        last = np.uint64(len(slots) - 1)
        for other in range(row + 1):
            begin = ends[other]
            place = _key(letters[begin:], ends[other + 1] - begin) & last
            while slots[place] >= 0:
                place = (place + np.uint64(1)) & last
            slots[place] = other
    return Table(slots, ends, letters, values, table.size)


@_inner
def _larger(array):  # type: ignore[no-untyped-def]
    larger = np.empty(2 * len(array), array.dtype)
    for i in range(len(array)):  # a slice is checked, and the text of the error takes seconds to compile
        larger[i] = array[i]
    return larger


# ------------------------------------------------------------------------------------------------------------- terms


@_inner
def _term(word, length, rules, units, consonants):  # type: ignore[no-untyped-def]
    """Change a word to its term: lower case, without `'s`, stemmed; return the new length, 0 for a stop word."""
    size = _decoded(word, length, rules, units)
    if size >= 2 and units[size - 1] == _S and (units[size - 2] in _QUOTES):
        size -= 2
    if _is_stop_word(units, size, rules.stop_words):
        return 0
    return _encoded(units, _stem(units, size, rules, consonants), word)


@_inner
def _decoded(word, length, rules, units):  # type: ignore[no-untyped-def]
    """Write a word in lower case as UTF-16; return the number of code units."""
    at, size = 0, 0
    while at < length:
        width = _width(word[at])
        code = np.int64(word[at])
        if width > 1:
            code = _code(word, at, width)
            upper = np.searchsorted(rules.upper, code)
            if upper < len(rules.upper) and rules.upper[upper] == code:
                code = np.int64(rules.lower[upper])
        at += width
        if code > 0xFFFF:
            units[size] = 0xD7C0 + (code >> 10)
            units[size + 1] = 0xDC00 | (code & 0x3FF)
            size += 2
        else:
            units[size] = code
            size += 1
    return size


@_inner
def _encoded(units, size, word):  # type: ignore[no-untyped-def]
    """Write UTF-16 as UTF-8; return the number of bytes."""
    at, length = 0, 0
    while at < size:
        code = np.int64(units[at])
        at += 1
        if 0xD800 <= code < 0xDC00:
            code = ((code - 0xD7C0) << 10) | (np.int64(units[at]) & 0x3FF)
            at += 1
        if code < 0x80:
            word[length] = code
            length += 1
            continue
        width = 2 + int(code > 0x7FF) + int(code > 0xFFFF)
        for i in range(width - 1, 0, -1):
            word[length + i] = 0x80 | (code & 0x3F)
            code >>= 6
        word[length] = (0xF00 >> width) & 0xFF | code
        length += width
    return length


@_inner
def _is_stop_word(units, size, stop_words):  # type: ignore[no-untyped-def]
    for row in range(len(stop_words)):  # noqa: SIM110  # numba has no generators in `any`
        if _suffix(units, size, stop_words, row) == size:
            return True
    return False


# ------------------------------------------------------------------------------------- Porter's stems, as in `english`


@_inner
def _stem(units, size, rules, consonants):  # type: ignore[no-untyped-def]
    """Change a word to its stem; return its length."""
    if size <= 2:
        return size
    size = _plural(units, size)
    size = _past_and_progressive(units, size, consonants)
    if units[size - 1] == _Y and _has_vowel(units, size - 1, consonants):
        units[size - 1] = _I
    least = np.int64(0)
    size = _replaced(units, size, rules.double_suffixes, rules.double_replacements, least, consonants)
    size = _replaced(units, size, rules.single_suffixes, rules.single_replacements, least, consonants)
    size = _replaced(units, size, rules.last_suffixes, rules.last_replacements, least + 1, consonants)
    return _final_e(units, size, consonants)


@_inner
def _kinds(units, size, consonants):  # type: ignore[no-untyped-def]
    """Distinguish consonants from vowels; `y` is a vowel after a consonant."""
    for i in range(size):
        letter = units[i]
        if letter == _Y:
            consonants[i] = i == 0 or not consonants[i - 1]
        else:
            consonants[i] = letter not in _VOWELS


@_inner
def _has_vowel(units, size, consonants):  # type: ignore[no-untyped-def]
    _kinds(units, size, consonants)
    for i in range(size):  # noqa: SIM110  # numba has no generators in `any`
        if not consonants[i]:
            return True
    return False


@_inner
def _measure(units, size, consonants):  # type: ignore[no-untyped-def]
    """Return how often a consonant follows a vowel."""
    _kinds(units, size, consonants)
    times = 0
    for i in range(1, size):
        times += consonants[i] and not consonants[i - 1]
    return times


@_inner
def _ends_double(units, size, consonants):  # type: ignore[no-untyped-def]
    if size < 2 or units[size - 1] != units[size - 2]:
        return False
    _kinds(units, size, consonants)
    return consonants[size - 1]


@_inner
def _ends_short(units, size, consonants):  # type: ignore[no-untyped-def]
    """Test for consonant, vowel, consonant at the end, the last one neither w, x nor y."""
    if size < 3:
        return False
    _kinds(units, size, consonants)
    last = units[size - 1]
    usual = last != _W and last != _X and last != _Y
    return usual and consonants[size - 3] and not consonants[size - 2] and consonants[size - 1]


@_inner
def _suffix(units, size, reverse, row):  # type: ignore[no-untyped-def]
    """Return the length of a suffix, stored from its last letter to a zero; 0 if the word has another end."""
    length = 0
    while length < reverse.shape[1] and reverse[row, length]:
        if length == size or units[size - 1 - length] != reverse[row, length]:
            return 0
        length += 1
    return length


@_inner
def _plural(units, size):  # type: ignore[no-untyped-def]
    if units[size - 1] != _S:
        return size
    is_sses = size >= 4 and units[size - 4] == _S and units[size - 3] == _S and units[size - 2] == _E
    is_ies = units[size - 3] == _I and units[size - 2] == _E
    if is_sses or is_ies:
        return size - 2
    return size - (units[size - 2] != _S)


@_inner
def _past_and_progressive(units, size, consonants):  # type: ignore[no-untyped-def]
    rest = size
    if size >= 3 and units[size - 3] == _E and units[size - 2] == _E and units[size - 1] == _D:
        return size - (_measure(units, size - 3, consonants) > 0)
    if size >= 2 and units[size - 2] == _E and units[size - 1] == _D:
        rest = size - 2
    elif size >= 3 and units[size - 3] == _I and units[size - 2] == _N and units[size - 1] == _G:
        rest = size - 3
    if rest == size or not _has_vowel(units, rest, consonants):
        return size
    last, before = units[rest - 1], units[rest - 2] if rest > 1 else 0
    if (before == _A and last == _T) or (before == _B and last == _L) or (before == _I and last == _Z):
        units[rest] = _E
        return rest + 1
    if _ends_double(units, rest, consonants):
        return rest if last in (_L, _S, _Z) else rest - 1
    if _measure(units, rest, consonants) == 1 and _ends_short(units, rest, consonants):
        units[rest] = _E
        return rest + 1
    return rest


@_inner
def _replaced(units, size, suffixes, replacements, least, consonants):  # type: ignore[no-untyped-def]
    """Replace the first suffix that fits if more than `least` measures precede it; `ion` only after s or t."""
    for row in range(len(suffixes)):
        length = _suffix(units, size, suffixes, row)
        if not length:
            continue
        rest = size - length
        is_ion = length == 3 and suffixes[row, 1] == _O and suffixes[row, 0] == _N
        if is_ion and (rest == 0 or (units[rest - 1] != _S and units[rest - 1] != _T)):
            return size
        if _measure(units, rest, consonants) <= least:
            return size
        for i in range(replacements.shape[1]):
            if not replacements[row, i]:
                break
            units[rest] = replacements[row, i]
            rest += 1
        return rest
    return size


@_inner
def _final_e(units, size, consonants):  # type: ignore[no-untyped-def]
    measure = _measure(units, size, consonants)
    if (
        size
        and units[size - 1] == _E
        and (measure > 1 or not (measure < 1 or _ends_short(units, size - 1, consonants)))
    ):
        size -= 1
    if size and units[size - 1] == _L and measure > 1 and _ends_double(units, size, consonants):
        size -= 1
    return size
