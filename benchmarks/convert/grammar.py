"""Text from a small stochastic grammar whose entropy is known.

A right-linear grammar: state s writes a word w of its own list with probability p_s(w), then a
space, and goes to the state that belongs to w. Words of one state are different and hold no space,
so the text tells the words, and from the first whole word on the states: nothing is hidden for
long, and the entropy of a character is that of a word over the mean length of a word.
"""

from dataclasses import dataclass

import numpy as np

LETTERS = "abcdefghijklmnopqrstuvwxyz"
ALPHABET = LETTERS + " "
SPACE = len(LETTERS)


@dataclass(frozen=True)
class Grammar:
    """States, words and how likely they are.

    Attributes:
        words: As numbers of letters, without the space.
        words_SM: The words that each state may write, by number.
        p_SM: How likely each of them is; each row adds up to 1.
        next_V: The state that follows each word.
    """

    words: tuple[tuple[int, ...], ...]
    words_SM: np.ndarray
    p_SM: np.ndarray
    next_V: np.ndarray

    @property
    def lengths_V(self) -> np.ndarray:
        """Characters of each word with the space that ends it."""
        return np.array([len(word) + 1 for word in self.words])

    def stationary_S(self) -> np.ndarray:
        """Shares of the states over words of an endless text."""
        states = len(self.p_SM)
        step_SS = np.zeros((states, states))
        rows = np.repeat(np.arange(states), self.p_SM.shape[1])
        np.add.at(step_SS, (rows, self.next_V[self.words_SM].ravel()), self.p_SM.ravel())
        # pi (P - 1) = 0 with sum(pi) = 1; least squares, as one row of the system is redundant
        system = np.vstack([step_SS.T - np.eye(states), np.ones(states)])
        return np.linalg.lstsq(system, np.append(np.zeros(states), 1.0), rcond=None)[0]

    def entropy(self) -> float:
        """Nats of a character: `Σ_s π_s H(p_s) / Σ_s π_s Σ_w p_s(w) (|w| + 1)`."""
        share_S = self.stationary_S()
        nats_S = -(self.p_SM * np.log(self.p_SM)).sum(1)
        length_S = (self.p_SM * self.lengths_V[self.words_SM]).sum(1)
        return float(share_S @ nats_S / (share_S @ length_S))

    def text(self, characters: int, seed: int, streams: int = 512) -> np.ndarray:
        """Draws texts side by side, each from a state of its own.

        Args:
            characters: Of all together.
            seed: Of the draw.
            streams: How many texts.

        Returns:
            Numbers of characters, uint8 `[streams, characters // streams]`.
        """
        rng, length = np.random.default_rng(seed), characters // streams
        state_N = rng.choice(len(self.p_SM), size=streams, p=_clean(self.stationary_S()))
        edges_SM = np.cumsum(self.p_SM, axis=1)
        table_VC = self._spelled()
        lengths_V, text_NC = self.lengths_V, np.empty((streams, length), np.uint8)
        at_N, columns = np.zeros(streams, np.int64), np.arange(table_VC.shape[1])
        while (at_N < length).any():
            above_NM = rng.random(streams)[:, None] >= edges_SM[state_N, :-1]
            word_N = self.words_SM[state_N, above_NM.sum(1)]
            place_NC = at_N[:, None] + columns
            written_NC = (columns < lengths_V[word_N][:, None]) & (place_NC < length)
            rows, _ = np.nonzero(written_NC)
            text_NC[rows, place_NC[written_NC]] = table_VC[word_N][written_NC]
            at_N += lengths_V[word_N]
            state_N = self.next_V[word_N]
        return text_NC

    def _spelled(self) -> np.ndarray:
        """Letters of each word, and spaces behind them."""
        table_VC = np.full((len(self.words), self.lengths_V.max()), SPACE, np.uint8)
        for word, letters in enumerate(self.words):
            table_VC[word, : len(letters)] = letters
        return table_VC


def draw_grammar(
    seed: int,
    *,
    words: int,
    states: int,
    of_state: int,
    letters: int = len(LETTERS),
    lengths: tuple[int, int] = (2, 6),
) -> Grammar:
    """Draws a grammar.

    Args:
        seed: Of the draw.
        words: V; all different.
        states: S.
        of_state: M, words that one state may write; the r-th is 1 / r as likely as the first.
        letters: How many the words are made of.
        lengths: Letters of the shortest and the longest word.
    """
    rng = np.random.default_rng(seed)
    spelled: dict[tuple[int, ...], None] = {}
    while len(spelled) < words:
        length = rng.integers(lengths[0], lengths[1], endpoint=True)
        spelled[tuple(rng.integers(letters, size=length).tolist())] = None
    weight_M = 1 / np.arange(1, of_state + 1)
    return Grammar(
        words=tuple(spelled),
        words_SM=np.stack([rng.permutation(words)[:of_state] for _ in range(states)]),
        p_SM=np.tile(weight_M / weight_M.sum(), (states, 1)),
        next_V=rng.integers(states, size=words),
    )


def _clean(p_S: np.ndarray) -> np.ndarray:
    """Shares without what rounding left below 0."""
    p_S = np.clip(p_S, 0, None)
    return p_S / p_S.sum()
