//! Memory cost of a step: after warm-up, nothing proportional to the number of parameters is allocated, and the memory held
//! between steps stays within the documented number of parameter-sized vectors.
//!
//! Messages differ in length from step to step, so occasionally a frame must grow. The *quietest* step after warm-up shows the
//! allocations of every step, messages included, and the mean bounds the growth.
//!
//! Own binary, with one test: the counter counts every thread of the process.
//!
//! The counting allocator needs `unsafe`, as `GlobalAlloc` is an unsafe trait. It forwards to the system's.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout as Block, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use briquette_core::comm::{Local, Session, run_ranks};
use briquette_core::config::{Config, ControllerConfig, Exchange, Feedback, ReducerConfig};
use briquette_core::error::{CommError, SyncError};
use briquette_core::reduce::{power_sgd::PowerSgdConfig, shared_random_k::SharedRandomKConfig};
use briquette_core::step::Driver;
use briquette_core::sync::Header;
use briquette_core::wrapper::{inner_momentum::InnerMomentumConfig, momentum_correction::MomentumCorrectionConfig};
use briquette_core::{CompressionRatio, Key, Layout};
use briquette_zoo::control::gravac::GraVacConfig;
use briquette_zoo::reduce::{sketched_sgd::SketchedSgdConfig, sparse_all_reduce::SparseAllReduceConfig};
use briquette_zoo::wrapper::shifted::{Diana, Ef21};

struct Counting;

static HELD: AtomicU64 = AtomicU64::new(0);
static ASKED: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator with unchanged arguments; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, block: Block) -> *mut u8 {
        HELD.fetch_add(block.size() as u64, Relaxed);
        ASKED.fetch_add(block.size() as u64, Relaxed);
        // SAFETY: the caller keeps `GlobalAlloc`'s contract.
        unsafe { System.alloc(block) }
    }
    unsafe fn dealloc(&self, at: *mut u8, block: Block) {
        HELD.fetch_sub(block.size() as u64, Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, block) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Values of the vector: ½ Mi, a matrix of 1024 rows among them.
const LEN: usize = 1 << 19;
/// Bytes of the last transfers that a session keeps.
const RECORDER: usize = 1000 * 96;
const WARM_UP: u64 = 8;
const STEPS: u64 = 4;
/// Bytes that a rank may allocate in the quietest step: headers, lists of ranks and slots, and a controller's few numbers. One
/// value in a hundred, as top-k sends, takes more than four times as much.
const QUIET: f64 = 4400.0;
/// Bytes that a rank may allocate in a step on average, for frames that grow.
const GROWTH: f64 = LEN as f64 / 8.0;

fn layout() -> Layout {
    let (rows, bias) = (1 << 10, 1 << 12);
    Layout::new([("matrix", vec![rows, (LEN - bias) / rows]), ("bias", vec![bias])])
}

/// Bytes over all ranks: held after warm-up by the run, and requested by each of the steps after it.
struct Memory {
    held: f64,
    asked: [f64; STEPS as usize],
}

impl Memory {
    fn quietest(&self) -> f64 {
        self.asked.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn mean(&self) -> f64 {
        self.asked.iter().sum::<f64>() / STEPS as f64
    }
}

/// Changes the values at every step, so that messages differ in length as in training.
fn refill(vector: &mut [f32], state: &mut u64) {
    for v in vector {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let unit = (*state >> 40) as f32 / (1_u64 << 24) as f32 - 0.5;
        *v = unit * unit * unit;
    }
}

fn run(config: &Config, world: usize) -> Memory {
    let layout = layout();
    // Created before the world, so that the caller's memory is not counted.
    let vectors: Vec<std::sync::Mutex<Vec<f32>>> = (0..world).map(|_| vec![0.0; LEN].into()).collect();
    let before = HELD.load(Relaxed);
    let ranks = run_ranks(Local::world(world), |mut comm| {
        let mut driver = Driver::new(Key::new(1));
        driver.drive(config.build(&layout, world).expect("a valid configuration"), layout.clone());
        let rank = comm.rank();
        let mut vector = vectors[rank].lock().expect("each rank has its own");
        let mut random = rank as u64;
        let (mut held, mut asked) = (0, [0; STEPS as usize + 1]);
        for step in 0..WARM_UP + STEPS {
            if step >= WARM_UP {
                asked[(step - WARM_UP) as usize] = look(&mut comm, &ASKED)?;
            }
            if step == WARM_UP {
                held = look(&mut comm, &HELD)?;
            }
            refill(&mut vector, &mut random);
            if step == 0 {
                driver.strategy_mut().begin(&vector);
            }
            let header = Header { samples: 1, loss: Some(1.0), learning_rate: Some(0.1), ..Header::default() };
            if driver.plan().gradients {
                driver.exchange_gradient(header, &mut *vector, &mut [true; 2], &mut comm)?;
            } else {
                driver.exchange_parameters(header, &mut vector, &mut comm)?;
            }
            driver.end_step();
        }
        asked[STEPS as usize] = look(&mut comm, &ASKED)?;
        Ok::<_, Failed>((held - before, asked))
    });
    // All ranks read the counter at the same moments.
    let (held, asked) = ranks.into_iter().map(|r| r.expect("no rank fails")).next().expect("at least one rank");
    Memory { held: held as f64, asked: std::array::from_fn(|step| (asked[step + 1] - asked[step]) as f64) }
}

/// Returns the counter's value when all ranks have arrived here and none has continued.
fn look(comm: &mut Session, counter: &AtomicU64) -> Result<u64, CommError> {
    comm.barrier()?;
    let seen = counter.load(Relaxed);
    comm.barrier()?;
    Ok(seen)
}

#[derive(Debug)]
struct Failed(#[expect(dead_code, reason = "shown by `expect`")] String);

impl From<CommError> for Failed {
    fn from(error: CommError) -> Self {
        Failed(error.to_string())
    }
}

impl From<SyncError> for Failed {
    fn from(error: SyncError) -> Self {
        Failed(error.to_string())
    }
}

fn exchange(reducer: ReducerConfig, feedback: Feedback) -> Config {
    Config::every_step(Exchange { reducer, feedback, ..Exchange::default() })
}

fn gather(compressor: &str) -> ReducerConfig {
    ReducerConfig::gather(compressor.parse().expect("a valid compressor"))
}

/// A configuration, and the memory that a rank may hold between steps, in vectors of the parameters' size.
struct Row {
    name: &'static str,
    config: Config,
    /// Number of full vectors.
    vectors: f64,
    /// Memory of one message, as a share of a vector.
    message: f64,
    /// Set if it may exchange densely, through a ring: a frame of `1/W` vectors.
    ring: bool,
}

impl Row {
    /// Returns the limit: the vectors, and memory that is proportional to the parameters only through the compression. That is
    /// this rank's message (the candidates of a selection, the bytes) and every other rank's (its frame, and its decoded form).
    fn limit(&self, world: usize) -> f64 {
        let ring = if self.ring && world > 1 { 1.0 / world as f64 } else { 0.0 };
        self.vectors + ring + self.message * (2 * world + 2) as f64
    }
}

fn table() -> Vec<Row> {
    briquette_zoo::install();
    let momentum = Feedback::from(MomentumCorrectionConfig { clip: Some(1.0), ..MomentumCorrectionConfig::default() });
    let ratio = |x| CompressionRatio::new(x).expect("at least 1");
    let gravac = GraVacConfig { min: ratio(20.0), max: ratio(200.0), window: 2, ..GraVacConfig::default() };
    let adaptive = |feedback| {
        Config::every_step(Exchange {
            reducer: gather("topk:20x:q8"),
            feedback,
            controller: ControllerConfig::from(gravac.clone()),
            ..Exchange::default()
        })
    };
    let random = SharedRandomKConfig { ratio: ratio(100.0), scaled: false }.into();
    let sparse = SparseAllReduceConfig { ratio: ratio(100.0) }.into();
    // One row, because hashing is slow without optimization.
    let sketch = SketchedSgdConfig { ratio: ratio(1000.0), rows: 1, width: 50.0, ..SketchedSgdConfig::default() };
    let row = |name, config, vectors, message, ring| Row { name, config, vectors, message, ring };
    let per_slot = ReducerConfig::gather_per_slot("topk:0.01".parse().expect("a compressor"));
    let bucketed = |reducer| {
        let bucket_values = Some(1 << 10);
        Config::every_step(Exchange { reducer, feedback: Feedback::error(), bucket_values, ..Exchange::default() })
    };
    let strategy = |text: &str| Config { strategy: text.parse().expect("a strategy"), ..Config::dense() };
    let inner = InnerMomentumConfig::default().into();
    vec![
        // A frame is as long as the parameters.
        row("SGP", strategy("sgp"), 3.0, 0.001, false),
        // Anchor and momentum, current and next, and the difference.
        row("SlowMo", strategy("slowmo:1"), 5.0, 0.001, true),
        row("SlowMo over SGP", strategy("slowmo:period=2,base=sgp"), 8.0, 0.001, true),
        // Anchor, momentum and input, current and next, and the vectors of the exchange. Also 8 KiB for a thread and its
        // channel.
        row("Overlap-Local-SGD", strategy("overlap-local-sgd:1"), 8.0, 0.002, true),
        // The input, current and next, and the vectors of the exchange.
        row("a step late", strategy("delayed"), 4.0, 0.002, true),
        row("local SGD", Config::local_sgd(1), 1.0, 0.001, true),
        row("half", exchange(gather("f16"), Feedback::none()), 2.0, 0.51, false),
        row("scaled sign, error feedback", exchange(gather("sign"), Feedback::error()), 3.0, 0.033, false),
        row("top-k per slot, error feedback", exchange(per_slot, Feedback::error()), 3.0, 0.02, false),
        row("top-k in buckets, error feedback", bucketed(gather("topk:0.01")), 3.0, 0.02, false),
        row("dense", exchange(ReducerConfig::dense(), Feedback::none()), 1.0, 0.001, true),
        row("top-k, error feedback", exchange(gather("topk:0.01"), Feedback::error()), 3.0, 0.02, false),
        row("top-k of 8 bits, error feedback", exchange(gather("topk:0.01:q8"), Feedback::error()), 3.0, 0.02, false),
        row(
            "threshold top-k, error feedback",
            exchange(gather("threshold-topk:0.01"), Feedback::error()),
            3.0,
            0.026,
            false,
        ),
        row("redsync, error feedback", exchange(gather("redsync:0.01"), Feedback::error()), 3.0, 0.04, false),
        row("sidco, error feedback", exchange(gather("sidco:0.01"), Feedback::error()), 3.0, 0.024, false),
        row("random-k", exchange(gather("randk:0.01:scaled"), Feedback::none()), 2.0, 0.02, false),
        row("top-k, momentum correction", exchange(gather("topk:0.01"), momentum.clone()), 5.0, 0.02, false),
        row("top-k, with momentum in the optimizer", exchange(gather("topk:0.01"), inner), 7.0, 0.02, false),
        row("GraVAC, error feedback", adaptive(Feedback::error()), 3.0, 0.1, true),
        row("GraVAC, momentum correction", adaptive(momentum), 5.0, 0.1, true),
        row("QSGD", exchange(gather("qsgd:4"), Feedback::none()), 2.0, 0.13, false),
        row("PowerSGD", exchange(PowerSgdConfig { rank: 2 }.into(), Feedback::error()), 3.0, 0.01, false),
        row("DIANA, QSGD", exchange(gather("qsgd:4"), Diana { alpha: None }.into()), 5.0, 0.13, false),
        row("EF21, top-k", exchange(gather("topk:0.01"), Ef21.into()), 5.0, 0.02, false),
        row("sketched SGD", exchange(sketch.into(), Feedback::error()), 4.0, 0.03, true),
        row("sparse all-reduce", exchange(sparse, Feedback::error()), 4.0, 0.04, false),
        row("shared random-k", exchange(random, Feedback::error()), 4.0, 0.02, false),
    ]
}

#[test]
fn after_warm_up_a_step_allocates_nothing_of_parameter_size_and_few_vectors_are_held() {
    let mut failed = Vec::new();
    for row in table() {
        for world in [1, 2, 4] {
            let memory = run(&row.config, world);
            // In addition to vectors, each session holds its last transfers.
            let held = (memory.held - (RECORDER * world) as f64) / (4 * LEN * world) as f64;
            let [quietest, mean] = [memory.quietest(), memory.mean()].map(|bytes| bytes / world as f64);
            let line = format!(
                "{}, {world} ranks: {held:.3} vectors held a rank, {quietest:.0} bytes in the quietest step, {mean:.0} in \
                 the mean",
                row.name
            );
            println!("{line}");
            if held > row.limit(world) || quietest > QUIET || mean > GROWTH {
                failed.push(line);
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
