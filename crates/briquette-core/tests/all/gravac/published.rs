//! GraVAC with every compressor that it was published with, layer-wise and whole, and on clocks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use briquette_core::comm::{Clock, run_ranks};
use briquette_core::config::Config;
use briquette_core::error::CommError;
use briquette_core::step::Driver;
use briquette_core::sync::Header;
use briquette_core::{Key, Layout};
use briquette_sim::{Compute, Network, Simulated};
use rand_distr::{Distribution, StandardNormal};

struct Wall(Instant);

impl Clock for Wall {
    fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

/// A weight, long enough for a threshold to be sampled, and a bias.
fn layout() -> Layout {
    Layout::new([("weight", vec![200, 200]), ("bias", vec![200])])
}

/// One rank's observations.
#[derive(Debug, PartialEq)]
struct Run {
    parameters: Vec<f32>,
    ratios: Vec<f64>,
    reasons: Vec<String>,
    bytes: u64,
}

/// Size of a target: a tenth of the targets is ten times as large.
fn size(i: usize) -> f32 {
    if i.is_multiple_of(10) { 10.0 } else { 1.0 }
}

/// Plain SGD to the mean of the ranks' targets, each with noise, with these settings.
fn train(settings: &str, network: &str, compute: Compute, steps: u64) -> Vec<Run> {
    let config: Config = toml::from_str(settings).expect("valid settings");
    let network: Network = network.parse().expect("a network");
    let ranks = run_ranks(Simulated::world(2, network, compute), |mut comm| {
        let rank = comm.rank();
        let strategy = config.build(&layout(), comm.world()).expect("valid settings");
        let mut run = Run { parameters: vec![0.0; layout().len()], ratios: vec![], reasons: vec![], bytes: 0 };
        let mut driver = Driver::new(Key::new(0));
        driver.drive(strategy, layout());
        for step in 0..steps {
            let mut rng = Key::new(3).rank(rank).step(step).block(0);
            let mut noise = || -> f32 { StandardNormal.sample(&mut rng) };
            let target = |i: usize| (rank as f32 + 0.5) * size(i);
            let pull = |(i, p): (usize, &f32)| p - target(i) + 0.1 * noise();
            let mut gradient: Vec<f32> = run.parameters.iter().enumerate().map(pull).collect();
            let optimize = |p: &mut [f32], g: &[f32]| p.iter_mut().zip(g).for_each(|(p, g)| *p -= 0.05 * g);
            let header = Header { samples: 32, ..Header::default() };
            let stepped = driver.take_step(header, (&mut gradient, &mut run.parameters), optimize, &mut comm);
            stepped.expect("nothing fails here");
            let report = driver.report();
            run.ratios.push(report.ratio.expect("a ratio").get());
            run.reasons.extend(report.reason);
        }
        run.bytes = comm.traffic().sent;
        Ok::<_, CommError>(run)
    });
    ranks.into_iter().map(Result::unwrap).collect()
}

#[test]
fn every_published_compressor_trains_layer_wise_and_whole() {
    briquette_zoo::install();
    let compute = || Compute::Fixed(Duration::from_millis(50));
    let dense = train("reducer = 'dense'", "10mbit,1ms", compute(), 200)[0].bytes;
    for (compressor, epsilon) in [("topk", 0.15), ("threshold-topk", 0.15), ("redsync", 0.15), ("randk", 0.1)] {
        for per_slot in [false, true] {
            let run = train(
                &format!(
                    "reducer = {{ kind = 'gather', compressor = '{compressor}:4x', per_slot = {per_slot} }}\n\
                     feedback = 'error'\ncontroller = 'gravac:4x,max=32x,epsilon={epsilon},window=10'"
                ),
                "10mbit,1ms",
                compute(),
                200,
            );
            let name = format!("{compressor}, layer-wise {per_slot}");
            let [one, other] = &run[..] else { panic!("two ranks") };
            assert_eq!(
                (&one.parameters, &one.ratios, &one.reasons),
                (&other.parameters, &other.ratios, &other.reasons),
                "{name}"
            );
            // The means of the targets; all started at 0.
            let far = |(i, p): (usize, &f32)| f64::from(p - size(i)).powi(2);
            let error = one.parameters.iter().enumerate().map(far).sum::<f64>() / layout().len() as f64;
            assert!(error < 1.09, "{name}: {error} left of 10.9");
            let bolder = one.ratios.iter().filter(|ratio| **ratio > 4.0).count();
            assert!(bolder > 20, "{name}: {:?} {:?}", one.ratios, one.reasons);
            assert!(one.bytes * 3 < dense, "{name}: {} bytes, dense {dense}", one.bytes);
        }
    }
}

#[test]
fn on_a_real_clock_compression_is_off_on_a_fast_link_and_on_where_the_link_is_slow() {
    briquette_zoo::install();
    let settings = "reducer = 'gather:topk:10x'\nfeedback = 'error'\n\
                    controller = 'gravac:10x,max=20x,epsilon=0.1,window=5,dense_steps=3,smoothing=0.5'";
    for (network, is_dense) in [("unlimited", true), ("1mbit,1ms", false)] {
        let run = train(settings, network, Compute::Measured(Arc::new(Wall(Instant::now()))), 40);
        assert_eq!(run[0].ratios, run[1].ratios, "{network}");
        let late = &run[0].ratios[20..];
        assert!(late.iter().all(|ratio| (*ratio == 1.0) == is_dense), "{network}: {late:?} {:?}", run[0].reasons);
        let off = run[0].reasons.iter().any(|reason| reason.ends_with("compression off"));
        assert_eq!(off, is_dense, "{network}: {:?}", run[0].reasons);
    }
}
