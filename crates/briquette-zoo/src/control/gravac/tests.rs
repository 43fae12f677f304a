//! Tests of GraVAC against the paper's numbers, with the calls of the wrapper `Adaptive`. Golden traces that need vectors or ranks are
//! in `tests/all/gravac`.

mod recovery;
mod resume;

use super::*;
use briquette_core::reduce::{AgreedStep, LastExchange};

fn ratio(value: f64) -> CompressionRatio {
    CompressionRatio::new(value).unwrap()
}

fn two() -> Policy {
    Policy::Geometric { growth: 2.0 }
}

/// Runs steps as [`Adaptive`](briquette_core::wrapper::adaptive::Adaptive) does: `observe`, `needs`, `decide`.
#[derive(Clone)]
struct Driver {
    controller: GraVac,
    step: u64,
    last: Option<LastExchange>,
}

/// The decision of a step.
#[derive(Debug, PartialEq)]
struct Decided {
    ratio: CompressionRatio,
    reason: Option<String>,
}

impl Driver {
    fn new(config: &GraVacConfig) -> Self {
        Driver { controller: config.build(32).unwrap(), step: 0, last: None }
    }

    /// Runs one step. A ratio has the gain `gain`, and a step at a ratio takes `seconds`.
    fn step(&mut self, gain: &dyn Fn(f64) -> f64, seconds: &dyn Fn(f64) -> f64) -> Decided {
        self.observe();
        let gains: Vec<f64> = self.controller.needs().gains.iter().map(|f| gain(f.get())).collect();
        let agreed_step = AgreedStep { step: self.step, ..AgreedStep::default() };
        let mut agreed = Agreed::new(&agreed_step, &[]);
        (agreed.norm2, agreed.gains) = (1.0, &gains);
        let decision = self.controller.decide(&agreed);
        let decided = Decided { ratio: decision.ratio().unwrap(), reason: decision.reason };
        let exchange_seconds = seconds(decided.ratio.get());
        self.last = Some(LastExchange { samples: 1000, exchange_seconds, ..LastExchange::default() });
        self.step += 1;
        decided
    }

    /// Passes the measurements of the previous step to the controller, once.
    fn observe(&mut self) {
        let agreed_step = AgreedStep { step: self.step, previous: self.last.take(), ..AgreedStep::default() };
        self.controller.observe(&agreed_step);
    }

    /// Returns the ratios of the next `steps` steps as (ratio, number in a row), and the reasons given.
    fn run(
        &mut self,
        steps: u64,
        gain: &dyn Fn(f64) -> f64,
        seconds: &dyn Fn(f64) -> f64,
    ) -> (Vec<(f64, u64)>, Vec<String>) {
        let (mut runs, mut reasons): (Vec<(f64, u64)>, Vec<String>) = (Vec::new(), Vec::new());
        for _ in 0..steps {
            let decision = self.step(gain, seconds);
            reasons.extend(decision.reason);
            match runs.last_mut().filter(|(f, _)| *f == decision.ratio.get()) {
                Some((_, times)) => *times += 1,
                None => runs.push((decision.ratio.get(), 1)),
            }
        }
        (runs, reasons)
    }
}

fn no_clock(_: f64) -> f64 {
    0.0
}

fn table(pairs: &[(f64, f64)]) -> impl Fn(f64) -> f64 + '_ {
    |ratio| pairs.iter().find(|(f, _)| *f == ratio).unwrap_or_else(|| panic!("no entry for {ratio}x")).1
}

#[test]
fn golden_3_boldest_ratio_that_keeps_enough_is_sent() {
    for (safe, bold, sent) in [(0.9, 0.7, 20.0), (0.6, 0.7, 20.0), (0.7, 0.69, 10.0), (0.69, 0.69, 1.0)] {
        let mut driver = Driver::new(&GraVacConfig::default());
        let gains = [(10.0, safe), (20.0, bold)];
        assert_eq!(driver.step(&table(&gains), &no_clock).ratio.get(), sent, "{safe} {bold}");
    }
}

#[test]
fn epsilon_zero_always_sends_the_candidate_and_above_one_always_dense() {
    let all = GraVacConfig { epsilon: 0.0, window: 2, ..GraVacConfig::default() };
    let (runs, _) = Driver::new(&all).run(20, &|f| 1.0 / f, &no_clock);
    assert_eq!(runs, [(20.0, 2), (40.0, 2), (160.0, 2), (1000.0, 14)]);
    let (runs, _) = Driver::new(&GraVacConfig { epsilon: 1.1, ..all }).run(20, &|_| 1.0, &no_clock);
    assert_eq!(runs, [(1.0, 20)]);
}

#[test]
fn golden_6_geometric_walk_saturates_at_1280_and_holds() {
    // Gains fall by 2 % per candidate, throughputs rise; 1029.9 → 1035.4 is 0.53 %.
    let gains: Vec<_> = [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 2000.0].into_iter().zip(0..).collect();
    let gains: Vec<_> = gains.into_iter().map(|(f, i)| (f, 0.99 * 0.98_f64.powi(i))).collect();
    let throughput = [
        (20.0, 500.0),
        (40.0, 600.0),
        (80.0, 700.0),
        (160.0, 800.0),
        (320.0, 900.0),
        (640.0, 980.0),
        (1280.0, 1029.9),
        (2000.0, 1035.4),
    ];
    let seconds = |f: f64| 1000.0 * table(&gains)(f) / table(&throughput)(f);
    let (runs, reasons) = Driver::new(&GraVacConfig::geometric()).run(40_000, &table(&gains), &seconds);
    let walk = [20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 2000.0].map(|f| (f, 2000));
    assert_eq!(runs[..8], walk);
    // After ten windows the held ratio is compared again, with the same result.
    assert_eq!(runs[8..], [(1280.0, 20_000), (2000.0, 2000), (1280.0, 2000)]);
    assert_eq!(reasons[0], "gain 0.97 at 20x reaches 0.70: sending 20x");
    assert_eq!(reasons[1], "window over: trying 40x");
    assert_eq!(reasons.last().unwrap(), "throughput saturated between 1280x and 2000x: holding 1280x");
}

#[test]
fn golden_7_exponential_walk_falls_back_to_the_safe_ratio_then_to_the_boldest_that_passes() {
    let gains = [(10.0, 0.95), (20.0, 0.93), (40.0, 0.91), (160.0, 0.85), (1000.0, 0.75)];
    // Times fall with the size, and differ by more than 1 %.
    let seconds = |f: f64| 1.0 + 10.0 / f;
    let mut driver = Driver::new(&GraVacConfig { epsilon: 0.9, ..GraVacConfig::default() });
    let (runs, reasons) = driver.run(1500, &table(&gains), &seconds);
    assert_eq!(runs, [(20.0, 500), (40.0, 500), (10.0, 500)]);
    assert_eq!(driver.controller.needs().gains, [ratio(10.0), ratio(160.0)]);
    assert_eq!(reasons[2], "gain 0.85 at 160x below 0.90: sending 10x");
    // The paper continues to 1000x, and stays at 10x for good. Here 1000x is not tried while 160x fails.
    let (runs, reasons) = driver.run(11_000, &table(&gains), &seconds);
    assert_eq!(runs, [(40.0, 5000), (10.0, 500), (40.0, 5000), (10.0, 500)]);
    assert_eq!(reasons[0], "gain of the bolder candidate too small: back to 40x");
}

#[test]
fn golden_8_safe_rises_to_the_ratio_that_was_measured() {
    // (.80 − .795)/.80 = .00625 ≤ .01; (.80 − .79)/.80 = .0125 > .01.
    for (bold, probes) in [(0.795, [20.0, 40.0]), (0.79, [10.0, 40.0])] {
        let config = GraVacConfig { window: 5, ..GraVacConfig::default() };
        let mut driver = Driver::new(&config);
        driver.run(5, &table(&[(10.0, 0.80), (20.0, bold)]), &no_clock);
        driver.observe();
        assert_eq!(driver.controller.needs().gains, probes.map(ratio));
        let taken_over = if probes[0] == 20.0 { bold } else { 0.80 };
        assert!((driver.controller.search.safe_gain.unwrap().counts - taken_over).abs() < 1e-12);
        assert_eq!(driver.controller.search.bold_gain, None);
    }
}

#[test]
fn safe_at_the_largest_ratio_is_probed_once() {
    let config = GraVacConfig { window: 5, max: ratio(20.0), ..GraVacConfig::default() };
    let mut driver = Driver::new(&config);
    driver.run(6, &|_| 0.9, &no_clock);
    assert_eq!(driver.controller.needs().gains, [ratio(20.0)]);
    assert_eq!(driver.step(&|_| 0.9, &no_clock).ratio.get(), 20.0);
    assert_eq!(driver.run(100, &|_| 0.9, &no_clock).0, [(20.0, 100)]);
    let only = GraVacConfig { max: ratio(10.0), window: 5, ..GraVacConfig::default() };
    assert_eq!(Driver::new(&only).run(50, &|_| 0.9, &no_clock).0, [(10.0, 50)]);
}

/// A network so fast that compression only costs gain: `T` is 1000 for dense and 1000·gain otherwise.
fn fast(_: f64) -> f64 {
    1.0
}

#[test]
fn dense_wins_on_a_fast_network_and_is_measured_again_before_the_next_search() {
    let gains = [(10.0, 0.9), (20.0, 0.8)];
    let config =
        GraVacConfig { max: ratio(20.0), window: 10, dense_steps: 5, reprobe_windows: 3, ..GraVacConfig::default() };
    let mut driver = Driver::new(&config);
    let (runs, reasons) = driver.run(5 + 10, &table(&gains), &fast);
    assert_eq!(runs, [(1.0, 5), (20.0, 10)]);
    assert_eq!(reasons, ["timing dense before compression is tried", "dense timed: sending 20x"]);
    // In the last of the three windows, the network becomes slow.
    let slow = |f: f64| 1.0 + 10.0 / f;
    for step in 0..30 {
        let decision = driver.step(&table(&gains), if step < 20 { &fast } else { &slow });
        assert_eq!(decision.ratio.get(), 1.0, "step {step}");
        let told = (step == 0).then_some("throughput best at 1x of all tried: compression off");
        assert_eq!(decision.reason.as_deref(), told);
        // The probes are those of the following step: none for two windows, measured in the third.
        assert_eq!(driver.controller.needs().gains.is_empty(), step < 19, "step {step}");
    }
    // Compression is now faster, and stays on, also when dense is timed again.
    let (runs, reasons) = driver.run(200, &table(&gains), &slow);
    let expected = vec![(20.0, 110), (1.0, 5), (20.0, 85)];
    assert_eq!((runs, &reasons[0][..]), (expected, "dense timed: sending 20x"));
}

#[test]
fn saturation_between_dense_and_a_ratio_turns_compression_off() {
    // Dense is .001 faster than 20x·gain: within ω, and the lower ratio of the two is dense.
    let gains = [(10.0, 0.9), (20.0, 0.8), (40.0, 0.75)];
    let seconds = |f: f64| if f == 1.0 { 1.0 } else { 0.8005 };
    let config = GraVacConfig { max: ratio(40.0), window: 10, dense_steps: 5, ..GraVacConfig::default() };
    let mut driver = Driver::new(&config);
    let (runs, reasons) = driver.run(5 + 10 + 100, &table(&gains), &seconds);
    assert_eq!(runs, [(1.0, 5), (20.0, 10), (1.0, 100)]);
    assert_eq!(reasons[2], "throughput saturated between 1x and 20x: compression off");
}

#[test]
fn held_ratio_is_given_up_when_gain_or_throughput_falls() {
    // 20x and 40x have equal throughput: 20x is held after the second window.
    let gains = |f: f64| 0.95 - f / 1000.0;
    let seconds = |f: f64| gains(f);
    let config = GraVacConfig { max: ratio(160.0), window: 10, ..GraVacConfig::default() };
    let mut held = Driver::new(&config);
    assert_eq!(held.run(60, &gains, &seconds).0, [(20.0, 10), (40.0, 10), (20.0, 40)]);
    assert!(held.controller.search.held.is_some());

    let mut weaker = held.clone();
    let (_, reasons) = weaker.run(21, &|f| gains(f) - 0.3, &seconds);
    assert_eq!(reasons[0], "gain 0.69 at 20x below 0.70: sending 10x"); // .63 + .3·.68⁴
    assert!(weaker.controller.search.held.is_none());
    let (_, reasons) = held.clone().run(40, &gains, &|f| 2.0 * seconds(f));
    assert_eq!(reasons, ["window over: trying 40x", "throughput saturated between 20x and 40x: holding 20x"]);
    let mut same = held.clone();
    same.run(500, &gains, &|f| 1.1 * seconds(f)); // 9 % less is tolerated
    assert!(same.controller.search.held.is_some());
}

#[test]
fn risen_safe_ratio_returns_when_it_no_longer_keeps_enough() {
    let config = GraVacConfig { window: 10, ..GraVacConfig::default() };
    let mut driver = Driver::new(&config);
    driver.run(11, &|_| 0.9, &no_clock);
    assert_eq!(driver.controller.search.safe, ratio(20.0));
    // From here on only 10x has a sufficient gain.
    let (runs, _) = driver.run(60, &|f| if f > 10.0 { 0.3 } else { 0.8 }, &no_clock);
    assert_eq!(runs.last().unwrap().0, 10.0);
    assert_eq!(driver.controller.search.safe, ratio(10.0));
}

#[test]
fn settling_holds_the_best_of_all_tried() {
    // T = gain·1000/seconds peaks at 40x: .8·1000/.5 = 1600.
    let gains = [(10.0, 0.9), (20.0, 0.85), (40.0, 0.8), (160.0, 0.72)];
    let times = [(10.0, 0.9), (20.0, 0.7), (40.0, 0.5), (160.0, 0.49)];
    let paper = GraVacConfig { max: ratio(160.0), window: 10, ..GraVacConfig::default() };
    let (runs, _) = Driver::new(&paper).run(100, &table(&gains), &table(&times));
    assert_eq!(runs, [(20.0, 10), (40.0, 10), (160.0, 80)]);
    let (runs, reasons) = Driver::new(&GraVacConfig { settle: true, ..paper }).run(100, &table(&gains), &table(&times));
    assert_eq!(runs, [(20.0, 10), (40.0, 10), (160.0, 10), (40.0, 70)]);
    assert_eq!(reasons[3], "throughput best at 40x of all tried: holding 40x");
}

#[test]
fn without_a_clock_candidates_are_walked_by_gain_and_nothing_saturates() {
    let gains = |f: f64| 1.0 - f / 100_000.0 * 3.0;
    let config = GraVacConfig {
        policy: two(),
        window: 3,
        settle: true,
        dense_steps: 2,
        saturation: 0.0,
        ..GraVacConfig::default()
    };
    let mut driver = Driver::new(&config);
    let (runs, _) = driver.run(60, &gains, &no_clock);
    let walk = [(1.0, 2), (20.0, 3), (40.0, 3), (80.0, 3), (160.0, 3), (320.0, 3), (640.0, 3), (1000.0, 40)];
    assert_eq!(runs, walk);
    assert!(driver.controller.search.throughput.is_empty());
}

#[test]
fn untold_outcomes_delay_a_check_by_one_step() {
    let config = GraVacConfig { window: 5, ..GraVacConfig::default() };
    let mut driver = Driver::new(&config);
    let ratios: Vec<f64> = (0..13)
        .map(|_| {
            driver.last = None;
            driver.step(&|f| 1.0 - f / 1500.0, &no_clock).ratio.get()
        })
        .collect();
    assert_eq!(ratios[..6], [20.0; 6]);
    assert_eq!(ratios[6..11], [40.0; 5]);
}

#[test]
fn a_nan_gain_counts_as_zero_and_does_not_stay() {
    let mut driver = Driver::new(&GraVacConfig::default());
    assert_eq!(driver.step(&|_| f64::NAN, &no_clock).ratio.get(), 1.0);
    assert_eq!(driver.run(50, &|_| 0.9, &no_clock).0.last().unwrap().0, 20.0);
    // Without any gain, only dense is known to be safe for any ε.
    let mut blind = GraVacConfig { epsilon: 0.0, ..GraVacConfig::default() }.build(2).unwrap();
    let agreed_step = AgreedStep::default();
    assert_eq!(blind.decide(&Agreed::new(&agreed_step, &[])).ratio(), Some(CompressionRatio::DENSE));
}

/// A loss of a fifth is tolerated. A step time 1.1 times as long is within it, a step time twice as long is not.
#[test]
fn a_hold_ends_where_throughput_falls_by_more_than_its_tolerance() {
    let config = GraVacConfig { epsilon: 0.5, window: 2, reprobe_windows: 1000, ..GraVacConfig::default() };
    let mut driver = Driver::new(&config);
    let mut run = |slower: f64, steps| {
        let gain = |ratio: f64| 1.0 - 0.02 * ratio.log2();
        // 40x and 160x are equally fast, and 40x is held.
        let seconds = |ratio: f64| gain(ratio) * slower * if ratio < 40.0 { 2.0 } else { 1.0 };
        let reasons = driver.run(steps, &gain, &seconds).1;
        ["saturated", "throughput fell"].map(|words| reasons.iter().any(|reason| reason.contains(words)))
    };
    assert_eq!(run(1.0, 20), [true, false]);
    assert_eq!(run(1.1, 200), [false, false]);
    assert!(run(2.0, 200)[1]);
}
