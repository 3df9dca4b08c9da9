"""What the best reader of a text could reach, who knows the grammar and sees a window alone."""

import numpy as np

from benchmarks.convert.grammar import SPACE, Grammar


def best_loss(grammar: Grammar, windows_WL: np.ndarray) -> float:
    """Nats of a character for Bayes' rule over all places of the grammar.

    Places are the characters of each word of each state. A window may begin at any of them; its
    first character only tells where it may have begun, and is not counted.

    Args:
        grammar: What wrote the windows.
        windows_WL: Numbers of characters.
    """
    characters_H, starts_SM, ends_H, arrives_H = _places(grammar)
    states = len(grammar.p_SM)
    belief_WH = np.tile(_first_belief(grammar), (len(windows_WL), 1))
    nats = 0.0
    for column, read_W in enumerate(windows_WL.T):
        belief_WH = belief_WH * (characters_H == read_W[:, None])
        likely_W = belief_WH.sum(1)
        nats -= np.log(likely_W).sum() if column else 0.0
        belief_WH /= likely_W[:, None]
        # On to the next character of the word, or to the first of each word of the next state
        state_WS = belief_WH[:, ends_H] @ np.eye(states)[arrives_H]
        belief_WH[:, ends_H] = 0.0
        belief_WH = np.roll(belief_WH, 1, axis=1)
        belief_WH[:, starts_SM.ravel()] = (state_WS[:, :, None] * grammar.p_SM).reshape(
            len(windows_WL), -1
        )
    return float(nats / windows_WL[:, 1:].size)


def _places(grammar: Grammar) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Each place's character; where words start; which places end one, and the state after it."""
    words = [(*grammar.words[word], SPACE) for word in grammar.words_SM.ravel()]
    lengths = np.array([len(word) for word in words])
    ends = np.cumsum(lengths)
    starts_SM = (ends - lengths).reshape(grammar.words_SM.shape)
    return (
        np.concatenate([np.array(word) for word in words]),
        starts_SM,
        ends - 1,
        grammar.next_V[grammar.words_SM.ravel()],
    )


def _first_belief(grammar: Grammar) -> np.ndarray:
    """Shares of the places over characters of an endless text."""
    share_SM = grammar.stationary_S()[:, None] * grammar.p_SM
    belief_H = np.repeat(share_SM.ravel(), grammar.lengths_V[grammar.words_SM.ravel()])
    belief_H = np.clip(belief_H, 0, None)
    return belief_H / belief_H.sum()
