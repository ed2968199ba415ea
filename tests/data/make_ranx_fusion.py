"""Record what ranx makes of two small runs, for `test_fusion_methods.py` (ranx itself compiles for minutes).

cd tests && python data/make_ranx_fusion.py     # needs `pip install ranx`; recorded with ranx 0.3.21
"""

import json
import sys
from pathlib import Path

import numpy as np
from ranx import Run, fuse

sys.path.insert(0, ".")
from test_fusion_methods import CASES


def small_runs(queries: int = 3, hits: int = 8, pool: int = 14) -> list[dict[str, dict[str, float]]]:
    rng = np.random.default_rng(5)
    runs = []
    for _ in range(2):
        scores = np.round(np.sort(rng.random((queries, hits)) * 9 + 1)[:, ::-1], 3)
        docids = np.stack([rng.permutation(pool)[:hits] for _ in range(queries)]).astype(str)
        runs.append({f"q{q}": dict(zip(docids[q].tolist(), scores[q].tolist(), strict=True)) for q in range(queries)})
    return runs


def main() -> None:
    given = small_runs()
    fused = []
    for method, norm, parameters, _ in CASES:
        run = fuse([Run(run) for run in given], norm=norm, method=method, params=parameters).to_dict()
        fused.append({qid: {docid: round(score, 9) for docid, score in hits.items()} for qid, hits in run.items()})
    file = Path(__file__).with_name("ranx_fusion.json")
    file.write_text(json.dumps({"runs": given, "fused": fused}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
