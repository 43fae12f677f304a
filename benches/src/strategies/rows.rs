//! What is compared.

use super::Row;

/// Where the search for a rate of momentum SGD begins; it goes on to where the best lies between two others.
const SGD: &[f64] = &[0.2, 0.4];

// Rates of rows that have not been searched: SGD would do so.
/// Dense's.
const DENSE_S: &[f64] = &[0.4];
/// Of local steps: half of dense's.
const HALF: &[f64] = &[0.2];
/// Adam's: the best of dense's in `learning-rates.csv`, in another number of steps.
const ADAM: &[f64] = &[0.004];

const fn row(name: &'static str, flags: &'static str, rates: &'static [f64]) -> Row {
    Row { name, flags, rates, instead: &[] }
}

/// On data that ranks have alike.
pub(super) const RESNET8: &[Row] = &[
    row("dense", "--reducer dense", SGD),
    row("Local SGD, H = 4", "--strategy local-sgd:4", HALF),
    row(
        "Local SGD, H = 2, top-k 10x in 8 bits",
        "--strategy local-sgd:2 --reducer gather:topk:10x:q8 --feedback error",
        HALF,
    ),
    row("Local SGD, H = 12", "--strategy local-sgd:12", SGD),
    Row { instead: &["--strategy slowmo:12,beta=0.8"], ..row("SlowMo, H = 12", "--strategy slowmo:12", SGD) },
    row("Overlap-Local-SGD, H = 4", "--strategy overlap-local-sgd:4", SGD),
    row("CoCoD-SGD, H = 4", "--strategy cocod:4", SGD),
    row("SGP", "--strategy sgp", DENSE_S),
    row("EASGD, H = 4", "--strategy easgd:4", DENSE_S),
    row("LSGD, H = 4, two groups", "--strategy lsgd:4,local=2,group=2", DENSE_S),
    row("Parle, L = 5", "--strategy parle:5", DENSE_S),
    row("asynchronous, 4 workers", "--server async-sgd --ranks 5", &[0.1, 0.2]),
];

/// On data that differ by class.
pub(super) const BY_CLASS: &[Row] = &[
    row("dense", "--reducer dense", SGD),
    row("Local SGD, H = 4", "--strategy local-sgd:4", SGD),
    row("Overlap-Local-SGD, H = 4", "--strategy overlap-local-sgd:4", SGD),
    row("CoCoD-SGD, H = 4", "--strategy cocod:4", SGD),
];

/// Long periods.
pub(super) const BILSTM: &[Row] = &[
    row("dense", "--reducer dense", ADAM),
    row("Local SGD, H = 50", "--strategy local-sgd:50", ADAM),
    row("DiLoCo, H = 50", "--strategy diloco:50", ADAM),
    row("DiLoCo, H = 100", "--strategy diloco:100", ADAM),
];

/// Rows of the first table where one rank takes ten times as long, at that table's rates: a clock changes nothing that these compute.
pub(super) const STRAGGLER: &[Row] = &[
    row("dense", "--reducer dense --clock fixed:500ms,50ms", &[]),
    row("Local SGD, H = 4", "--strategy local-sgd:4 --clock fixed:500ms,50ms", &[]),
    row("SGP", "--strategy sgp --clock fixed:500ms,50ms", &[]),
    row("SGP, a step late", "--strategy sgp:exponential,staleness=1 --clock fixed:500ms,50ms", HALF),
];
