"""Rows that no random test draws, and their truth: leaders over plateaus around the threshold, levels, heavy tails.

The truth is a bisection in float64 that shares nothing with the library: p = (b z + E)₊^(1/b), z = x − max, b = α − 1,
with E in [n^-b, 1], where the sum rises with E.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

LENGTHS = [n + d for n in (16, 32, 64, 128, 192, 256, 1024, 2048, 4096, 32000, 100_000) for d in (-1, 0, 1)]
ALPHAS = [1.001, 1.01, 1.03, 1.05, 1.08, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4, 1.45, 1.499, 1.5, 1.501, 1.54, 1.6, 1.65]
ALPHAS += [1.7, 1.75, 1.8, 1.85, 1.9, 1.95, 1.98, 1.999, 2.0, 2.001, 2.2, 2.5, 3.0, 4.0]
LEADERS, NOISES = (1, 2, 5, 30), (0, 0, 0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
AROUND = (0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 0.6, 0.9)  # relative distances of a gap from the threshold's


def rows(n: int, alpha: float, count: int, seed: int) -> Tensor:
    """``count`` rows of ``n`` float32 scores, half of them leaders over a plateau."""
    draw = torch.Generator().manual_seed(seed)

    def pick(choices):
        return choices[int(torch.randint(len(choices), (), generator=draw))]

    return torch.stack([_row(n, alpha, pick, draw) if r % 2 else _plateau(n, alpha, pick, draw) for r in range(count)])


def _plateau(n: int, alpha: float, pick, draw) -> Tensor:
    """The plateau joins the support where its gap b·g is the edge of the leaders alone, m^-b."""
    m, b = min(pick(LEADERS), n - 1), alpha - 1
    gap = m**-b / b * (1 + pick((-1, 1)) * pick(AROUND))
    x = -gap + pick(NOISES) * torch.randn(n, generator=draw, dtype=torch.float64)
    x[:m] = pick((0, 0, 1e-3)) * torch.randn(m, generator=draw, dtype=torch.float64)
    return _placed(x, pick, draw)


def stairs(n: int, alpha: float, count: int, seed: int) -> Tensor:
    """Leaders, a few scores just above their edge, and all others above it by so little that the first step of a search
    passes them: what is left over looks small, and the support is not yet the right one. Of every second row only what
    lies in one lane of a vector is near, so that a start from the maxima of the lanes sees the leader alone."""
    draw = torch.Generator().manual_seed(seed)

    def pick(choices):
        return choices[int(torch.randint(len(choices), (), generator=draw))]

    b, found = alpha - 1, []
    for row in range(count):
        m, some, above = min(pick((1, 2, 5)), n - 2), pick((1, 2)), pick((3e-5, 1e-4, 2e-4, 1e-3, 1e-2))
        edge = m**-b / b
        x = torch.full((n,), -edge * (1 - above * pick((1e-3, 5e-3, 2e-2))), dtype=torch.float64)
        x[:m], x[m : m + some] = 0, -edge * (1 - above)
        if row % 2:
            found.append(_placed(x, pick, draw))
            continue
        far = torch.full((n,), -9 * edge, dtype=torch.float64)
        far[::8] = torch.cat([x[:1], x[m:]])[: len(far[::8])]
        found.append(far.float())
    return torch.stack(found)


def _row(n: int, alpha: float, pick, draw) -> Tensor:
    normal = torch.randn(n, generator=draw, dtype=torch.float64)
    kind, scale = pick(("normal", "lognormal", "cauchy", "levels", "line")), pick((0.01, 0.1, 0.5, 1, 3, 10))
    if kind == "lognormal":
        x = normal.mul(scale).exp()
    elif kind == "cauchy":
        x = (normal / torch.randn(n, generator=draw, dtype=torch.float64)).clamp(-1e4, 1e4) * scale
    elif kind == "levels":  # two or three, at random distances
        x = torch.randint(pick((2, 3)), (n,), generator=draw) * scale / (alpha - 1) * pick((0.1, 0.5, 0.9, 0.999))
    elif kind == "line":
        x = torch.linspace(0, -scale / (alpha - 1), n, dtype=torch.float64)
    else:
        x = normal * scale
    return _placed(x.double(), pick, draw)


def _placed(x: Tensor, pick, draw) -> Tensor:
    """Leaders first, leaders last, or shuffled; sometimes far from 0."""
    order = pick(("first", "last", "shuffled"))
    x = x.flip(0) if order == "last" else x[torch.randperm(len(x), generator=draw)] if order == "shuffled" else x
    return (x + pick((0, 0, 0, 7.5, -300))).float()


@dataclass
class Truth:
    """p and what follows from it, in float64. ``slack``: what an error of 1e-6 in the sum makes of a derivative."""

    z: Tensor
    E: Tensor
    b: float

    @property
    def p(self) -> Tensor:
        return self._p(self.E)

    def _p(self, E: Tensor) -> Tensor:
        y = (self.b * self.z + E).clamp(min=0)
        return torch.where(y > 0, y ** (1 / self.b), 0)

    def loss(self, target: Tensor) -> Tensor:
        """(1/α − E)/b + Σ (b z + E)₊^(α/b)/α − z_c, the dual, which is least at the root: there E need not be exact."""
        alpha = self.b + 1
        y = (self.b * self.z + self.E).clamp(min=0)
        conjugate = (1 / alpha - self.E[:, 0]) / self.b + (y ** (alpha / self.b)).sum(-1) / alpha
        return conjugate - self.z.gather(-1, target[:, None]).squeeze(-1)

    @property
    def clear(self) -> Tensor:
        """Rows where no score is within 2e-6 of the threshold: only there are derivatives compared."""
        return (1 + self.b * self.z / self.E).abs().amin(-1) > 2e-6

    def derivatives(self, g: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """dx, dα, and how far each moves while the sum is within 1e-6 of 1."""
        dx, da = self._derivatives(self.E, g)
        p = self.p
        y = (1 + self.b * self.z / self.E).clamp(min=1e-300)
        step = 1e-6 * self.b * self.E / torch.where(p > 0, p / y, 0).sum(-1, keepdim=True)
        moved = [self._derivatives(self.E + sign * step, g) for sign in (-1, 1)]
        return dx, da, *(torch.stack([(m[k] - t).abs() for m in moved]).amax(0) for k, t in enumerate((dx, da)))

    def _derivatives(self, E: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        b, p = self.b, self._p(E)
        on = p > 0
        y = torch.where(on, b * self.z + E, 1)
        s = torch.where(on, y ** ((1 - b) / b), 0)
        total = s.sum(-1, keepdim=True)
        dx = s * (g - (s * g).sum(-1, keepdim=True) / total)
        own = torch.where(on, p * (self.z / y - y.log() / b) / b, 0)  # at a fixed threshold
        return dx, (g * (own - s * (own.sum(-1, keepdim=True) / total))).sum(-1)


def near(ours: Tensor, true: Tensor, slack: Tensor | float, what: str, where: Tensor | slice = slice(None)) -> None:
    off = ((ours.double() - true).abs() - slack)[where]
    worst = off.max() if off.numel() else torch.tensor(0.0)
    assert worst <= 0, f"{what}: {worst:.2e} more than allowed"


def truth(x: Tensor, alpha: float) -> Truth:
    z, b = x.double(), alpha - 1
    z = z - z.amax(-1, keepdim=True)
    low, high = torch.full_like(z[:, :1], x.shape[-1] ** -b), torch.ones_like(z[:, :1])
    answer = Truth(z, high, b)
    for _ in range(55):
        middle = low + (high - low) / 2
        above = answer._p(middle).sum(-1, keepdim=True) > 1
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return Truth(z, low + (high - low) / 2, b)


def budget_rows(n: int, budget: float, count: int, seed: int) -> Tensor:
    """Leaders that share the budget, over a plateau around the threshold that they alone would have; in float64."""
    draw = torch.Generator().manual_seed(seed)
    leaders = min(n - 1, 2 + math.ceil(budget))
    x = torch.zeros(count, n, dtype=torch.float64)
    noise = 10.0 ** torch.randint(-12, -3, (count, 1), generator=draw)
    x[:, leaders:] = -budget / leaders + noise * torch.randn(count, n - leaders, generator=draw, dtype=torch.float64)
    return x


def budget_truth(x: Tensor, budget: float) -> Tensor:
    low, high = x.amin(-1, keepdim=True) - 1, x.amax(-1, keepdim=True)
    for _ in range(120):
        middle = low + (high - low) / 2
        above = (x - middle).clamp(0, 1).sum(-1, keepdim=True) > budget
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (x - low).clamp(0, 1)


def normmax_truth(x: Tensor, alpha: float) -> Tensor:
    """d^(q-1) over its sum, d = (z - τ)₊ and Σ d^q = 1, q = α/(α-1): the sum falls with τ, which is in [-1, 0]."""
    z, q = x.double() - x.double().amax(-1, keepdim=True), alpha / (alpha - 1)
    low, high = torch.full_like(z[:, :1], -1), torch.zeros_like(z[:, :1])
    for _ in range(60):
        middle = low + (high - low) / 2
        above = ((z - middle).clamp(min=0) ** q).sum(-1, keepdim=True) > 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    d = (z - low).clamp(min=0)
    powers = torch.where(d > 0, d ** (q - 1), 0)
    return powers / powers.sum(-1, keepdim=True)


def low_plateau(n: int, count: int = 200) -> Tensor:
    """A leader, or two, over a plateau that would rise above the threshold of the leader alone by little or much."""
    rise = torch.logspace(-6, -0.3, count, dtype=torch.float64)[:, None]
    x = (rise - 1).expand(count, n).clone()
    x[:, 0], x[::2, 1] = 0, -0.01
    return x.float()


def cut_plateau(n: int, t: float, count: int = 60) -> Tensor:
    """A leader over scores that lie within a millionth of each other, a little above ``t`` below it."""
    random = torch.Generator().manual_seed(n)
    rise = t * torch.logspace(-6.5, -0.5, count, dtype=torch.float64)[:, None]
    x = torch.rand(count, 1, generator=random, dtype=torch.float64) * 3 - 1
    low = x - t + rise + torch.rand(count, n - 1, generator=random) * 1e-6
    return torch.cat([x, low], -1).float()


def hourglass_truth(x: Tensor, q: float) -> Tensor:
    x, n = x.double(), x.shape[-1]
    return truth((1 + n * q) / (x.sum(-1, keepdim=True).abs() + n * q) * x, 2.0).p


def cut_truth(x: Tensor, t: Tensor | float) -> Tensor:
    """t-softmax; uniform over the maxima where t = 0."""
    z, t = x.double() - x.double().amax(-1, keepdim=True), torch.as_tensor(t, dtype=torch.float64)
    weight = torch.where(t > 0, (1 + z / torch.where(t > 0, t, 1)).clamp(min=0) * z.exp(), (z == 0).double())
    return weight / weight.sum(-1, keepdim=True)


def quantile_truth(x: Tensor, rate: float) -> Tensor:
    """r-softmax by a sort."""
    order = x.double().sort(-1).values
    place = rate * (x.shape[-1] - 1)
    first = int(place)
    low, high = order[:, first, None], order[:, min(first + 1, x.shape[-1] - 1), None]
    return cut_truth(x, order[:, -1:] - (low + (place - first) * (high - low)))


def cases(n: int, alphas: list[float], count: int) -> Iterator[tuple[float, Tensor]]:
    for k, alpha in enumerate(alphas):
        yield alpha, rows(n, alpha, count, 1000 * n + k)
