//! Claims about seconds: overlapped exchanges, and metering with given compression times, on simulated networks.

use std::time::Duration;

use briquette_core::aggregate::mean::Mean;
use briquette_core::comm::run_ranks;
use briquette_core::compress::top_k::TopK;
use briquette_core::config::Config;
use briquette_core::error::CommError;
use briquette_core::laws::train::Sgd;
use briquette_core::reduce::{AgreedStep, Reducer, Round, dense::Dense, gather::Gather};
use briquette_core::report::{ExchangeSeconds, Report};
use briquette_core::step::Driver;
use briquette_core::sync::{Header, diloco::DiLoCo, outer::Outer};
use briquette_core::wrapper::metered::Metered;
use briquette_core::{Key, Layout};
use briquette_sim::{CompressSeconds, Compute, SessionExt, Simulated};
use briquette_testkit::simulation::{Simulation, simulate};
use briquette_zoo::sync::streaming_diloco::{StreamingDiLoCo, StreamingDiLoCoConfig};

/// Claim: with overlap its exchanges cost no time; those of DiLoCo cost two thirds of the compute time.
#[test]
fn streaming_dilocos_exchanges_are_hidden() {
    let start = vec![3.0; 20_000];
    let (network, compute) = ("20mbit,1ms".parse().unwrap(), vec![Duration::from_millis(10)]);
    let world = Simulation { world: 4, network, compute };
    let flat = |_: usize, _: u64, x: &[f32]| vec![0.0_f32; x.len()];
    let task = (Sgd { rate: 0.05, momentum: 0.0, steps: 33 }, &flat as _);
    let diloco = DiLoCo { period: Some(8), ..DiLoCo::default() };
    let diloco = || Outer::new(diloco, Dense, None).unwrap();
    let whole = simulate(world.clone(), diloco, &start, task);
    let layout = Layout::new((0..4).map(|slot| (slot.to_string(), vec![5000])));
    let [waits, hidden] = [0, 2].map(|overlap| {
        let settings =
            StreamingDiLoCoConfig { period: Some(8), fragments: 4, overlap, ..StreamingDiLoCoConfig::default() };
        let strategy = || StreamingDiLoCo::new(settings, &layout, |_| Ok(Dense)).unwrap();
        simulate(world.clone(), strategy, &start, task)
    });
    let found = format!("DiLoCo {whole} s, in fragments {waits} s, with overlap {hidden} s; computing takes 0.33 s");
    assert!(hidden < 0.3301 && whole > 0.5 && waits > whole, "{found}");
}

#[test]
fn given_seconds_of_compressing_are_those_of_the_ratio_in_force() {
    let seconds = CompressSeconds::new(&[(1.0, 0.5), (4.0, 2.0)]).unwrap();
    for (ratio, expected) in [(4.0, 2.0), (2.0, 1.25)] {
        let network = "unlimited".parse().unwrap();
        let mut comm = Simulated::world(1, network, Compute::Fixed(Duration::from_secs(1))).remove(0);
        comm.set_compress_seconds(seconds.clone());
        comm.begin_step(0);
        let mut metered = Metered::new(Gather::new(TopK::fraction(1.0 / ratio).unwrap(), Mean));
        let (layout, mut average, agreed_step) = (Layout::flat(8), [0.0; 8], AgreedStep::default());
        let (key, slots, input) = (Key::new(0), layout.slots(), &[1.0; 8]);
        let round = Round { key, slots, agreed_step: &agreed_step, input, average: &mut average, sent: None };
        metered.reduce(round, &mut comm).unwrap();
        let mut report = Report::default();
        metered.report(&mut report);
        let mut seconds = ExchangeSeconds::default();
        seconds.compress = expected;
        assert_eq!(report.seconds, Some(seconds));
        assert_eq!(comm.now(), 1.0 + expected);
    }
}

/// Compute seconds of a step.
const COMPUTE: f64 = 0.01;

/// Trains 3000 steps of 10 ms on two ranks, whose link changes between 1 Gbit/s and 5 Mbit/s every 6 s. Returns the simulated seconds, and for each
/// exchange the second in which it ends and the number of local steps before it.
fn on_a_square_wave(strategy: &str) -> (f64, Vec<(f64, u64)>) {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("square.csv");
    std::fs::write(&trace, "seconds,mbit,ms\n0,1000,0\n6,5,0\n12,,\n").unwrap();
    let network = format!("trace:{}", trace.display()).parse().unwrap();
    let world = Simulated::world(2, network, Compute::Fixed(Duration::from_secs_f64(COMPUTE)));
    let ranks = run_ranks(world, |mut comm| {
        let layout = Layout::flat(25_000);
        let config: Config = format!("strategy={strategy} reducer=dense").parse().unwrap();
        let mut driver = Driver::new(Key::new(1));
        driver.drive(config.build(&layout, comm.world()).unwrap(), layout);
        let (mut parameters, mut ends, mut last) = (vec![1.0; 25_000], Vec::new(), 0);
        driver.strategy_mut().begin(&parameters);
        for step in 0..3000 {
            let exchanges = driver.plan().exchanges();
            let header = Header { compute_seconds: COMPUTE, samples: 1, ..Header::default() };
            driver.take_step(header, (&mut vec![0.0; 25_000], &mut parameters), |_, _| {}, &mut comm).unwrap();
            if exchanges {
                ends.push((comm.now(), step + 1 - last));
                last = step + 1;
            }
        }
        Ok::<_, CommError>((comm.now(), ends))
    });
    let [one, other] = <[_; 2]>::try_from(ranks.into_iter().map(Result::unwrap).collect::<Vec<_>>()).unwrap();
    let steps = |ends: &[(f64, u64)]| ends.iter().map(|(_, steps)| *steps).collect::<Vec<_>>();
    assert_eq!(steps(&one.1), steps(&other.1), "ranks agree on every period");
    (one.0, one.1)
}

/// Claim: the period is long while the link is slow and short while it is fast, and a step takes about as long as with the longest period.
#[test]
fn an_adaptive_period_follows_the_link() {
    let (seconds, ends) = on_a_square_wave("local-sgd:32,adapt=true");
    let [short, long] = [2, 32].map(|period| on_a_square_wave(&format!("local-sgd:{period}")).0);
    assert!(seconds < 1.06 * long && seconds < 0.75 * short, "{seconds} s, {short} s at 2 and {long} s at 32");
    // From the fifth exchange of each half of the wave on: the first one may have begun in the half before.
    let (mut fast, mut slow) = (Vec::new(), Vec::new());
    for window in ends.windows(5) {
        let halves: Vec<u64> = window.iter().map(|(second, _)| (second / 6.0) as u64).collect();
        if halves.iter().all(|half| *half == halves[0]) {
            if halves[0].is_multiple_of(2) { &mut fast } else { &mut slow }.push(window[4].1);
        }
    }
    assert!(fast.len() > 100 && fast.iter().all(|steps| *steps == 2), "{fast:?}");
    assert!(slow.len() > 1 && slow.iter().all(|steps| *steps == 32), "{slow:?}");
}
