//! Claims about seconds: overlapped exchanges, and metering with given compression times, on simulated networks.

use std::time::Duration;

use briquette_core::aggregate::mean::Mean;
use briquette_core::compress::top_k::TopK;
use briquette_core::laws::train::Sgd;
use briquette_core::reduce::{AgreedStep, Reducer, Round, dense::Dense, gather::Gather};
use briquette_core::report::{ExchangeSeconds, Report};
use briquette_core::sync::{diloco::DiLoCo, outer::Outer};
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
