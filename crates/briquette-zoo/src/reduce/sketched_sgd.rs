//! SketchedSGD: finds the largest coordinates of the *sum* with a linear sketch, then exchanges their exact values.
//!
//! **Why, and when not.** Top-k of each rank's vector misses coordinates that are moderate on every rank but large in the sum. A
//! Count-Sketch is linear, so it can be all-reduced: every rank reads the heavy coordinates of the sum from the sum of the sketches, and a
//! second, short all-reduce makes their values exact. Bytes do not grow with the world. The vector needs heavy coordinates; a flat vector
//! has none to find.
//!
//! *When it can pay.* The sketch costs several times `k` values, and every coordinate is hashed `rows` times twice. At 100x it
//! sends half of dense's bytes, about 4.3 per value (at 1000x a tenth of that). [`Gather`](briquette_core::reduce::gather::Gather) of the same top-k sends about 0.05
//! per value for each other rank, so it sends more only in a world of about 90 ranks or more (about a dozen with `rows=3,width=2,candidates=2`). In memory an
//! exchange takes tens of times as long as dense, most of it random access to the table. Below that many ranks, or on links of several
//! Gbit/s, it gains nothing.
//!
//! **Method.** Per exchange, with `k = round(d/ratio)`:
//!
//! | paper | here |
//! |---|---|
//! | `r` rows, `c` columns | `rows`, `columns = ⌈width·k⌉` |
//! | `S[j, h_j(i)] += s_j(i)·x_i` | `Hashes::sketch`, then an all-reduce |
//! | `x̂_i = median_j s_j(i)·S[j, h_j(i)]` | `Hashes::estimate` |
//! | top `P·k` of the estimates | `candidates` is `P` |
//! | second round: exact values there | an all-reduce of the ranks' values |
//! | top-k of the exact sum | the average; `sent` is the rank's own values there |
//!
//! `u` and `v` of the paper's algorithm 3 are [`MomentumCorrection`](briquette_core::wrapper::momentum_correction::MomentumCorrection) around this reducer.
//! [`ErrorFeedback`](briquette_core::wrapper::error_feedback::ErrorFeedback) around it gives its algorithm 2.
//!
//! *Hashes.* One polynomial of degree 3 over `p = 2⁶¹ − 1` per row: its lowest bit is the sign, and the other bits are scaled to a column.
//! So both are 4-wise independent (up to `c/2⁶⁰`). The coefficients come from a fixed key, without rank, step or seed: ranks agree, and
//! sketches of different steps may be added.
//!
//! **On the wire.** All-reduces of `rows·columns` and of `min(P·k, d)` values of 4 bytes. If `P·k ≥ d`, every coordinate is a candidate and
//! there is no sketch.
//!
//! **Properties.** Each row's estimate is unbiased with variance `(‖x‖² − x_i²)/c`, so its error exceeds `√(8/c)·‖x‖` with probability 1/8
//! at most, and the error of the median of five with 1.6 %. Values that are sent are exact; a miss only delays a coordinate. No constant
//! bounds a single rank's loss: needs error feedback or momentum correction. With `k = d` it is bit-identical to [`Dense`](briquette_core::reduce::dense::Dense).
//!
//! **State.** None.
//!
//! **Knobs.** `ratio` (`d/k`), default 1000; `rows`, odd, default 5; `width`, columns per kept value, at least 1, default 10; `candidates`
//! (`P`), at least 1, default 4. An exchange all-reduces `rows·width + P` values per kept value: 54 with the defaults, so `d/18`. The
//! defaults are not tuned. Hashing takes `6·rows` additions of 64 bits and `2·rows` multiplications per coordinate.
//!
//! **Deviations.** Averages instead of sums. All coordinates are sketched, including biases. Heavy coordinates are the `P·k` largest
//! estimates, as in the paper's experiments, instead of HEAVYMIX's threshold and random fill. The paper's bucket hash is 2-wise; a 4-wise
//! one costs nothing extra here. Coordinates whose estimate or mean is 0 are never sent.
//!
//! **Reference.** N. Ivkin, D. Rothchild, E. Ullah, V. Braverman, I. Stoica, R. Arora, *Communication-efficient Distributed
//! SGD with Sketching*, NeurIPS 2019 (arXiv 1903.04488), algorithms 2 and 3; M. Charikar, K. Chen, M. Farach-Colton,
//! *Finding Frequent Items in Data Streams*, 2002 (Count-Sketch).
//!
//! ```
//! use briquette_core::{Session, CompressionRatio, Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::error::ReduceError;
//! use briquette_core::reduce::{AgreedStep, Reducer, Round};
//! use briquette_zoo::reduce::sketched_sgd::{SketchedSgdConfig, SketchedSgd};
//! let settings = SketchedSgdConfig { ratio: CompressionRatio::new(40.0)?, ..SketchedSgdConfig::default() };
//! let averages = Local::run(2, |mut comm| {
//!     let mut input = vec![1.0; 40];
//!     input[[3, 5][comm.rank()]] = 5.0; // the largest here …
//!     input[30] = 4.0;                  // … and the one that is large on both
//!     let (layout, mut average) = (Layout::flat(40), vec![0.0; 40]);
//!     let mut reducer = SketchedSgd::new(settings).expect("valid settings");
//!     reducer.reduce(Round { key: Key::new(0), slots: layout.slots(), agreed_step: &AgreedStep::default(),
//!         input: &input, average: &mut average, sent: None }, &mut comm)?;
//!     Ok::<_, ReduceError>(average)
//! });
//! let average = averages[0].as_ref().unwrap();
//! assert_eq!((average[30], average.iter().sum::<f32>()), (4.0, 4.0)); // top-1 of a rank's own would be 3, and 5
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod hashes;

use hashes::Hashes;

use briquette_core::compress::{Compressor, ErrorBound, top_k::TopK};
use briquette_core::config::{Described, Exchange, ReducerSettings, ReducerTraits};
use briquette_core::error::{ConfigError, ReduceError};
use briquette_core::reduce::{Exchanged, Reducer, Round, Selection, check_average};
use briquette_core::report::Report;
use briquette_core::state::Stateful;
use briquette_core::{CompressionRatio, Key, Layout, Message, Session};

/// Settings of [`SketchedSgd`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "sketched-sgd",
    help = "the largest coordinates of the sum, found by a sketch (100x)",
    representatives("sketched-sgd:8x,rows=3,width=1,candidates=2"),
    combinations(
        "reducer=sketched-sgd:10x,candidates=2 feedback=none controller=none bucket_values=32",
        "reducer=sketched-sgd:10x,candidates=2 feedback=error controller=none bucket_values=32",
        "reducer=sketched-sgd:10x,candidates=2 feedback=momentum:clip=3 controller=none bucket_values=32",
    ),
    check = Self::check_rows
)]
pub struct SketchedSgdConfig {
    /// Compression ratio `d/k`: one value in this many is exchanged.
    #[setting(default = "100x")]
    pub ratio: CompressionRatio,
    /// Rows of the sketch, odd.
    #[setting(default = 5, range = "[1, 99]")]
    pub rows: usize,
    /// Columns per value exchanged, at least 1.
    #[setting(default = 10.0, range = "[1, 1000]")]
    pub width: f64,
    /// Coordinates whose exact values are fetched, per value exchanged; at least 1.
    #[setting(default = 4, range = "[1, inf)")]
    pub candidates: usize,
}

impl SketchedSgdConfig {
    fn check_rows(&self) -> Result<(), ConfigError> {
        let is_odd = !self.rows.is_multiple_of(2);
        ConfigError::unless(is_odd, "rows of sketched-sgd", "odd, for the median", self.rows)
    }
}

/// A sketched all-reduce; see the [module](self).
#[derive(Debug)]
pub struct SketchedSgd {
    settings: SketchedSgdConfig,
    hashes: Hashes,
    table: Vec<f32>,
    estimates: Message,
    chosen: Message,
    indices: Vec<u32>,
    values: Vec<f32>,
}

impl SketchedSgd {
    /// Creates a reducer after checking the settings.
    ///
    /// # Errors
    /// [`ConfigError`] if `rows` is even, `width` or `candidates` is below 1, or a size is beyond the range of a sketch.
    pub fn new(settings: SketchedSgdConfig) -> Result<Self, ConfigError> {
        settings.check()?;
        Ok(SketchedSgd {
            settings,
            hashes: Hashes::new(Key::new(0).purpose("count-sketch"), settings.rows),
            table: Vec::new(),
            estimates: Message::default(),
            chosen: Message::default(),
            indices: Vec::new(),
            values: Vec::new(),
        })
    }

    /// Fills `indices` with the candidates, equal on every rank; `scratch` holds one value per coordinate.
    fn find(&mut self, input: &[f32], scratch: &mut [f32], comm: &mut Session) -> Result<(), ReduceError> {
        let k = self.settings.ratio.keep(input.len());
        let most = self.settings.candidates.saturating_mul(k);
        self.indices.clear();
        if most >= input.len() {
            self.indices.extend(0..input.len() as u32);
            return Ok(());
        }
        let columns = (self.settings.width * k as f64).ceil() as usize;
        self.hashes.sketch(input, columns, &mut self.table);
        comm.all_reduce_sum(&mut self.table)?;
        self.hashes.estimate(&self.table, scratch);
        largest(scratch, most, &mut self.estimates);
        self.indices.extend_from_slice(self.estimates.sparse_indices().unwrap_or_default());
        Ok(())
    }
}

impl Stateful for SketchedSgd {}

impl Reducer for SketchedSgd {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let Round { slots, input, average, sent, .. } = round;
        let exchanged = Exchanged::count(comm, Selection::Some, |comm| {
            self.find(input, average, comm)?;
            self.values.clear();
            self.values.extend(self.indices.iter().map(|&i| input[i as usize]));
            Ok(comm.all_reduce_sum(&mut self.values)?)
        })?;
        let weight = 1.0 / comm.world() as f32;
        self.values.iter_mut().for_each(|v| *v *= weight);
        largest(&self.values, self.settings.ratio.keep(input.len()), &mut self.chosen);
        let chosen = self.chosen.sparse_indices().unwrap_or_default();
        average.fill(0.0);
        for &place in chosen {
            average[self.indices[place as usize] as usize] = self.values[place as usize];
        }
        check_average(average, slots)?;
        if let Some(sent) = sent {
            sent.fill(0.0);
            for index in chosen.iter().map(|&place| self.indices[place as usize] as usize) {
                sent[index] = input[index];
            }
        }
        Ok(exchanged)
    }

    fn report(&self, report: &mut Report) {
        report.ratio = Some(self.settings.ratio);
    }
}

/// Writes the `k` largest values of `x` by magnitude, without zeros.
fn largest(x: &[f32], k: usize, out: &mut Message) {
    let ratio = CompressionRatio::new(x.len() as f64 / k.max(1) as f64);
    TopK::ratio(ratio.unwrap_or(CompressionRatio::DENSE)).compress_into(x, Key::new(0), out);
}

impl ReducerSettings for SketchedSgdConfig {
    fn build(&self, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(SketchedSgd::new(*self)?))
    }

    fn traits(&self) -> ReducerTraits {
        ReducerTraits { needs_feedback: true, is_exact: true, searches: true, ..ReducerTraits::default() }
    }

    /// The selection is made for the mean: it never lengthens a rank's error, and may leave all of it.
    fn error_bound(&self, _len: usize) -> Option<ErrorBound> {
        None
    }
}

#[cfg(test)]
mod tests;
