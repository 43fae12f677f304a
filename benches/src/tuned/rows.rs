//! Compared rows of each task.

use super::Row;

/// First rates of the search for momentum SGD; it continues until the best lies between two others.
const SGD: &[f64] = &[0.2, 0.4];

// Rates of rows that have not been searched: SGD would do so.
/// Rates of dense.
const DENSE_S: &[f64] = &[0.4];
/// Rates of local steps: half of dense's.
const HALF: &[f64] = &[0.2];
/// Adam's rate for rows without a search: the best of dense's in `learning-rates.csv`, found for another number of steps.
const ADAM: &[f64] = &[0.004];
/// First rates of the search for Adam.
const ADAMS: &[f64] = &[0.002, 0.004];
/// First rates of the search for Adam with local steps.
const LOCAL_ADAM: &[f64] = &[0.004, 0.008];
/// First rates of the search for Adam with a root of higher order.
const PADAMS: &[f64] = &[0.1, 0.2];

const fn row(name: &'static str, flags: &'static str, rates: &'static [f64]) -> Row {
    Row { name, flags, rates, instead: &[] }
}

/// Rows on IID data.
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

/// Rows on data that differ by class.
pub(super) const BY_CLASS: &[Row] = &[
    row("dense", "--reducer dense", SGD),
    row("Local SGD, H = 4", "--strategy local-sgd:4", SGD),
    row("Overlap-Local-SGD, H = 4", "--strategy overlap-local-sgd:4", SGD),
    row("CoCoD-SGD, H = 4", "--strategy cocod:4", SGD),
];

/// Rows with long periods, and methods for Adam.
pub(super) const BILSTM: &[Row] = &[
    row("dense", "--reducer dense", ADAMS),
    row("Local SGD, H = 50", "--strategy local-sgd:50", ADAM),
    row("DiLoCo, H = 50", "--strategy diloco:50", LOCAL_ADAM),
    row("DiLoCo, H = 100", "--strategy diloco:100", ADAM),
    row("eager DiLoCo, H = 50", "--strategy eager-diloco:50", ADAM),
    row("NoLoCo, H = 50", "--strategy no-loco:50", ADAM),
    row("SparseLoCo, H = 50, 16x", "--strategy sparse-loco:50,ratio=16", LOCAL_ADAM),
    row("SparseLoCo, H = 30, 64x", "--strategy sparse-loco:30", LOCAL_ADAM),
    row("SparseLoCo, H = 50, 64x", "--strategy sparse-loco:50", &[0.032]),
    row(
        "1-bit Adam, 90 steps of warm-up",
        "--optimizer one-bit-adam --reducer two-way:sign,down=sign --feedback one-bit-adam:90",
        ADAMS,
    ),
    row("Comp-AMS, top-k 100x in 8 bits", "--optimizer comp-ams --compressor topk:100x:q8 --feedback error", ADAMS),
    row(
        "DoubleSqueeze, signs, with Adam",
        "--optimizer adam --reducer two-way:sign,down=sign,per_slot=true --feedback error",
        &[0.004, 0.008],
    ),
    row("GadamX, mean from step 300", "--reducer dense --optimizer padamw --average-from 300", &[2.56, 5.12]),
];

/// Means of the second half's iterates compared with last iterates. The exchange is exact unless a row says otherwise.
pub(super) const OPTIMIZERS: &[Row] = &[
    row("dense", "--reducer dense", &[0.1, 0.2]),
    row("SGD, mean of iterates", "--reducer dense --schedule constant --average-from 158", &[0.1, 0.2]),
    row("Adam", "--reducer dense --optimizer adam", ADAMS),
    row("Adam at a constant rate", "--reducer dense --optimizer adam --schedule constant", ADAMS),
    row("Gadam", "--reducer dense --optimizer adam --schedule constant --average-from 158", ADAMS),
    row("PAdamW", "--reducer dense --optimizer padamw", PADAMS),
    row("GadamX", "--reducer dense --optimizer padamw --schedule constant --average-from 158", PADAMS),
    row("generalized SignSGD", "--reducer dense --optimizer sign-sgd", &[0.001, 0.002]),
    row("Generic Adam", "--reducer dense --optimizer generic-adam --schedule constant", &[0.02, 0.04]),
    row("delayed AdaGrad", "--reducer dense --optimizer delayed-adagrad --schedule constant", &[0.1, 0.2]),
    row("Comp-AMS, exact", "--reducer dense --optimizer comp-ams", ADAMS),
    row("Comp-AMS, top-k 10x", "--optimizer comp-ams --compressor topk:10x --feedback error", ADAMS),
    row("Comp-AMS, signs", "--optimizer comp-ams --compressor sign --feedback error", ADAMS),
];

/// A compressor or reducer that needs feedback: error feedback, otherwise momentum correction.
macro_rules! biased {
    ($name:literal, $flags:literal, $rates:expr) => {
        Row {
            name: $name,
            flags: concat!($flags, " --feedback error"),
            rates: $rates,
            instead: &[concat!($flags, " --momentum-correction on")],
        }
    };
}

/// A compressor or reducer without feedback.
macro_rules! unbiased {
    ($name:literal, $flags:literal, $rates:expr) => {
        row($name, concat!($flags, " --feedback none"), $rates)
    };
}

/// First rates for methods that move every value by the learning rate.
const SIGNS: &[f64] = &[0.002, 0.004];
/// First rates for signs with a scale.
const SCALED: &[f64] = &[0.1, 0.2];
/// First rates for SGD without momentum.
const PLAIN: &[f64] = &[0.8, 1.6];

/// Compressors and reducers: sparsifiers at 10x, those without a ratio as they are.
pub(super) const COMPRESSORS: &[Row] = &[
    // With the seeds of the table the better of this rate and of what the search's one seed finds: no row is compared with less.
    row("dense", "--reducer dense", &[0.05]),
    row("dense, as searched", "--reducer dense", SGD),
    unbiased!("bf16", "--compressor bf16", SGD),
    unbiased!("f16", "--compressor f16", SGD),
    unbiased!("minmax", "--compressor minmax", SGD),
    unbiased!("natural", "--compressor natural", SGD),
    unbiased!("qsgd:4", "--compressor qsgd:4", SGD),
    unbiased!("qsgd:2", "--compressor qsgd:2", SGD),
    row("qsgd:2, DIANA", "--compressor qsgd:2 --feedback diana", SGD),
    unbiased!("qsgd:s4:512:l2:elias", "--compressor qsgd:s4:512:l2:elias", SGD),
    unbiased!("dither", "--compressor dither", SGD),
    unbiased!("round:2:random", "--compressor round:2:random", SGD),
    biased!("round:2", "--compressor round:2", SGD),
    unbiased!("terngrad", "--compressor terngrad", SGD),
    unbiased!("ternary-all-reduce", "--reducer ternary-all-reduce:2.5", SGD),
    biased!("one-bit", "--compressor one-bit", SCALED),
    biased!("sign", "--compressor sign", SCALED),
    biased!("sign, a message a layer", "--compressor sign --per-slot on --dense-below 0", SCALED),
    biased!("3 rounds of sign", "--reducer multi-step:3 --compressor sign", SCALED),
    unbiased!("plain-sign", "--compressor plain-sign", SIGNS),
    Row {
        name: "topk:10x",
        flags: "--compressor topk:10x --feedback error",
        rates: SGD,
        instead: &[
            "--compressor topk:10x --momentum-correction on",
            "--compressor topk:10x --feedback error-inside",
            "--compressor topk:10x --feedback ef21",
        ],
    },
    biased!("threshold-topk:10x", "--compressor threshold-topk:10x", SGD),
    biased!("redsync:10x", "--compressor redsync:10x", SGD),
    biased!("sidco:10x", "--compressor sidco:10x", SGD),
    biased!("hard-threshold:0.01", "--compressor hard-threshold:0.01", SGD),
    biased!("topk:10x+minmax", "--compressor topk:10x+minmax", SGD),
    biased!("topk:10x+natural", "--compressor topk:10x+natural", SGD),
    biased!("topk:10x+dither", "--compressor topk:10x+dither", SGD),
    biased!("randk:10x", "--compressor randk:10x", SCALED),
    unbiased!("randk:10x:scaled", "--compressor randk:10x:scaled", SCALED),
    biased!("biased-random:10x", "--compressor biased-random:10x", SCALED),
    biased!("adaptive-random", "--compressor adaptive-random", SCALED),
    biased!("shared-random-k:10x", "--reducer shared-random-k:10x", SCALED),
    biased!("sparse-all-reduce:10x", "--reducer sparse-all-reduce:10x", SGD),
    biased!("sketched-sgd:100x", "--reducer sketched-sgd:100x", SCALED),
    biased!("power-sgd:2", "--reducer power-sgd:2", SGD),
    row("majority vote", "--reducer two-way:plain-sign,down=plain-sign --momentum 0 --feedback none", SIGNS),
    row(
        "majority vote, Signum",
        "--reducer two-way:plain-sign,down=plain-sign --momentum 0 --feedback rank-momentum:0.9",
        SIGNS,
    ),
    biased!("DoubleSqueeze, signs", "--reducer two-way:sign,down=sign", SCALED),
    biased!("DoubleSqueeze, topk:10x", "--reducer two-way:topk:10x,down=topk:10x", SGD),
    row("Artemis, qsgd:4", "--reducer artemis:qsgd:4 --momentum 0", PLAIN),
    row("MCM, qsgd:4", "--reducer mcm:qsgd:4 --momentum 0", PLAIN),
];

/// Rows of the first table with one rank that takes ten times as long, at that table's rates: time does not change their results.
pub(super) const STRAGGLER: &[Row] = &[
    row("dense", "--reducer dense --clock fixed:500ms,50ms", &[]),
    row("Local SGD, H = 4", "--strategy local-sgd:4 --clock fixed:500ms,50ms", &[]),
    row("SGP", "--strategy sgp --clock fixed:500ms,50ms", &[]),
    row("SGP, a step late", "--strategy sgp:exponential,staleness=1 --clock fixed:500ms,50ms", HALF),
];
