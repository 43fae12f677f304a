//! Tests that earlier results are checked again: recovered gains, an old timing of dense, and first samples that are high.

use super::*;

/// The trainers' world: four ranks, so the newest gain has weight 1/20.
fn four_ranks(config: &GraVacConfig) -> Driver {
    Driver { controller: config.build(4).unwrap(), ..Driver::new(config) }
}

/// Returns the step times of a link on which a step at `ratio` takes `1 + seconds/ratio`.
fn link(seconds: f64) -> impl Fn(f64) -> f64 {
    move |ratio| 1.0 + seconds / ratio
}

#[test]
fn a_first_gain_above_epsilon_does_not_carry_a_candidate_below_it() {
    // Gains of 20x while a residual fills, from a run of a ResNet-8.
    let recorded = [0.554, 0.37, 0.32, 0.30, 0.28, 0.27, 0.26, 0.25, 0.24, 0.23];
    let mut driver = four_ranks(&GraVacConfig::small_model());
    let ratios: Vec<f64> = (0..24)
        .map(|step| {
            let bold = recorded[step.min(9)];
            driver.step(&|ratio| if ratio == 10.0 { 0.55 } else { bold }, &no_clock).ratio.get()
        })
        .collect();
    assert_eq!(ratios[..2], [20.0, 10.0]);
    assert!(ratios[1..].iter().all(|ratio| *ratio == 10.0), "{ratios:?}");
}

#[test]
fn a_low_first_gain_does_not_keep_a_candidate_out_for_long() {
    // .2 and then .55: means .2, .375, .433.
    let mut driver = four_ranks(&GraVacConfig::small_model());
    let ratios = [0.2, 0.55, 0.55, 0.55]
        .map(|bold| driver.step(&|ratio| if ratio == 10.0 { 0.6 } else { bold }, &no_clock).ratio.get());
    assert_eq!(ratios, [10.0, 10.0, 20.0, 20.0]);
}

#[test]
fn once_an_average_has_settled_a_single_low_gain_changes_nothing() {
    let mut driver = four_ranks(&GraVacConfig { window: 1000, ..GraVacConfig::default() });
    driver.run(20, &|_| 0.9, &no_clock);
    assert_eq!(driver.step(&|_| 0.1, &no_clock).ratio.get(), 20.0);
    // At the second step of an average it would change.
    let mut young = four_ranks(&GraVacConfig { window: 1000, ..GraVacConfig::default() });
    young.run(1, &|_| 0.9, &no_clock);
    assert_eq!(young.step(&|_| 0.1, &no_clock).ratio.get(), 1.0);
}

#[test]
fn gains_that_recover_after_the_walk_are_found() {
    let config = GraVacConfig::small_model();
    let mut driver = four_ranks(&config);
    let (early, late) = (
        [(10.0, 0.55), (20.0, 0.3), (40.0, 0.2), (100.0, 0.1)],
        [(10.0, 0.95), (20.0, 0.9), (40.0, 0.85), (100.0, 0.3)],
    );
    assert_eq!(driver.run(100, &table(&early), &no_clock).0, [(10.0, 100)]);
    let (runs, reasons) = driver.run(2000, &table(&late), &no_clock);
    let steps = |ratio: f64| runs.iter().filter(|(f, _)| *f == ratio).map(|(_, steps)| steps).sum::<u64>();
    assert!(steps(40.0) > 1700 && steps(10.0) < 250, "{runs:?}");
    assert!(
        reasons.iter().any(|reason| reason == "gain of the bolder candidate too small: back to 40x"),
        "{reasons:?}"
    );
}

#[test]
fn a_candidate_that_fails_is_tried_again_after_the_rest_and_kept_where_it_passes() {
    let config = GraVacConfig { max: ratio(40.0), window: 10, reprobe_windows: 3, ..GraVacConfig::default() };
    let mut driver = Driver::new(&config);
    let gains = [(10.0, 0.9), (20.0, 0.8), (40.0, 0.5)];
    let (runs, _) = driver.run(80, &table(&gains), &no_clock);
    assert_eq!(runs, [(20.0, 10), (10.0, 10), (20.0, 30), (10.0, 10), (20.0, 20)]);
    let (runs, _) = driver.run(60, &|_| 0.9, &no_clock);
    assert_eq!(runs, [(20.0, 10), (40.0, 50)]);
}

#[test]
fn several_candidates_that_fail_are_gone_back_over_one_by_one() {
    let config = GraVacConfig { max: ratio(160.0), window: 10, ..GraVacConfig::default() };
    let mut driver = Driver::new(&config);
    let early = [(10.0, 0.95), (20.0, 0.93), (40.0, 0.91), (160.0, 0.89)];
    assert_eq!(driver.run(25, &table(&early), &no_clock).0, [(20.0, 10), (40.0, 10), (160.0, 5)]);
    // From here on only 10x has a sufficient gain.
    let tried = [0, 10, 10, 10].map(|steps| {
        driver.run(steps, &|f| if f > 10.0 { 0.3 } else { 0.95 }, &no_clock);
        driver.controller.search.bold.get()
    });
    assert_eq!(tried, [160.0, 40.0, 20.0, 20.0]);
}

#[test]
fn a_held_ratio_gives_way_to_a_bolder_one_after_the_rest() {
    // 20x and 40x are equally good at first. Later 160x is better than both.
    let config = GraVacConfig { max: ratio(160.0), window: 10, reprobe_windows: 4, ..GraVacConfig::default() };
    let mut driver = Driver::new(&config);
    let gains = |f: f64| 0.95 - f / 1000.0;
    assert_eq!(driver.run(50, &gains, &gains).0, [(20.0, 10), (40.0, 10), (20.0, 30)]);
    let (runs, _) = driver.run(110, &|_| 0.9, &|f| 10.0 / f);
    assert_eq!(runs.last(), Some(&(160.0, runs.last().unwrap().1)), "{runs:?}");
}

#[test]
fn dense_is_timed_again_and_wins_on_a_network_that_became_fast() {
    let gains = [(10.0, 0.9), (20.0, 0.8)];
    let config =
        GraVacConfig { max: ratio(20.0), window: 10, dense_steps: 2, stale_windows: 3, ..GraVacConfig::default() };
    let mut driver = Driver::new(&config);
    let (runs, reasons) = driver.run(2 + 40, &table(&gains), &link(10.0));
    assert_eq!(runs, [(1.0, 2), (20.0, 40)], "{reasons:?}");
    // On a slow link, dense is timed, and compression stays on.
    let (runs, reasons) = driver.run(44, &table(&gains), &link(10.0));
    assert_eq!(runs, [(1.0, 2), (20.0, 40), (1.0, 2)]);
    assert_eq!(reasons[..2], ["timing dense again", "dense timed: sending 20x"]);
    // From here on a step takes a second for any message, and dense keeps all energy.
    let (runs, reasons) = driver.run(80, &table(&gains), &link(0.0));
    assert_eq!(runs, [(20.0, 40), (1.0, 2), (20.0, 10), (1.0, 28)], "{reasons:?}");
}

#[test]
fn a_held_ratio_is_compared_with_dense_as_it_is_today() {
    let gains = |f: f64| if f == 1.0 { 1.0 } else { 0.95 - f / 1000.0 };
    let slow = |f: f64| if f == 1.0 { 20.0 } else { gains(f) };
    let config = GraVacConfig { window: 10, dense_steps: 2, stale_windows: 3, ..GraVacConfig::default() };
    let mut driver = Driver::new(&config);
    driver.run(2 + 30, &gains, &slow);
    assert!(driver.controller.search.held.is_some());
    let (runs, reasons) = driver.run(60, &gains, &|f| if f == 1.0 { 0.5 } else { gains(f) });
    assert_eq!(runs.last().unwrap().0, 1.0, "{runs:?} {reasons:?}");
    assert!(reasons.contains(&"throughput best at 1x of all tried: compression off".to_owned()), "{reasons:?}");
    // Without `dense_steps`, dense is timed only when a gain is too small.
    let mut blind = Driver::new(&GraVacConfig { dense_steps: 0, ..config });
    let (runs, _) = blind.run(200, &gains, &fast);
    assert!(runs.iter().all(|(ratio, _)| *ratio > 1.0), "{runs:?}");
}
