//! What is compared.

use super::Row;

/// Momentum SGD's: the best of dense's own grid (`learning-rates.csv`), and half of it.
const GRID: &[f64] = &[0.2, 0.4];
const SGD: &[f64] = &[0.4];

/// Adam's, likewise.
const ADAM: &[f64] = &[0.004];

const fn row(name: &'static str, flags: &'static str, rates: &'static [f64]) -> Row {
    Row { name, flags, rates }
}

/// On data that ranks have alike.
pub(super) const RESNET8: &[Row] = &[
    row("dense", "--reducer dense", SGD),
    row("Local SGD, H = 4", "--strategy local-sgd:4", GRID),
    row(
        "Local SGD, H = 2, top-k 10x in 8 bits",
        "--strategy local-sgd:2 --reducer gather:topk:10x:q8 --feedback error",
        GRID,
    ),
    row("Local SGD, H = 12", "--strategy local-sgd:12", GRID),
    row("SlowMo, H = 12", "--strategy slowmo:12", &[0.1, 0.2, 0.4]),
    row("Overlap-Local-SGD, H = 4", "--strategy overlap-local-sgd:4", GRID),
    row("CoCoD-SGD, H = 4", "--strategy cocod:4", GRID),
    row("SGP", "--strategy sgp", SGD),
    row("EASGD, H = 4", "--strategy easgd:4", SGD),
    row("LSGD, H = 4, two groups", "--strategy lsgd:4,local=2,group=2", SGD),
    row("Parle, L = 5", "--strategy parle:5", SGD),
    row("asynchronous, 4 workers", "--server async-sgd --ranks 5", &[0.1, 0.2]),
];

/// On data that differ by class.
pub(super) const BY_CLASS: &[Row] = &[
    row("dense", "--reducer dense", GRID),
    row("Local SGD, H = 4", "--strategy local-sgd:4", GRID),
    row("Overlap-Local-SGD, H = 4", "--strategy overlap-local-sgd:4", GRID),
    row("CoCoD-SGD, H = 4", "--strategy cocod:4", GRID),
];

/// Long periods.
pub(super) const BILSTM: &[Row] = &[
    row("dense", "--reducer dense", ADAM),
    row("Local SGD, H = 50", "--strategy local-sgd:50", ADAM),
    row("DiLoCo, H = 50", "--strategy diloco:50", ADAM),
    row("DiLoCo, H = 100", "--strategy diloco:100", ADAM),
];
