//! Hybrid parallelism trains the same network as data parallelism and as one process, and sends as many bytes as its
//! formula states.

use std::num::NonZeroUsize;
use std::process::{Command, Output};

use briquette::Backend;
use briquette::core::comm::{Local, all_reduce_traffic};
use briquette_datasets::{ImageKind, ImageSet, ImageSource};
use briquette_examples::hybrid::{
    Network, Parallelism, Plan, Settings, SplitHead, Trained, largest_difference, train, train_alone,
};
use briquette_examples::models::trainable_parameters;
use burn::optim::SgdConfig;
use burn::tensor::Device;

/// Returns a network with 48 features and 1 411 parameters in the convolutions; no width is a multiple of two or three.
fn plan() -> Plan {
    Plan { stages: vec![(1, 6), (2, 8), (1, 3)], hidden: vec![11, 7], classes: 5 }
}

fn settings(ranks: usize) -> Settings {
    let batch = NonZeroUsize::new(4).unwrap();
    Settings { plan: plan(), ranks, batch, steps: 6, lr: 0.2, momentum: 0.9, seed: 7 }
}

fn device() -> Device {
    Backend::Flex.device(0).unwrap().autodiff()
}

fn images() -> ImageSet {
    let limits = Some(40);
    let source = ImageSource {
        train_limit: limits,
        test_limit: Some(1),
        ..ImageSource::new(ImageKind::Generated { classes: 5 })
    };
    source.load().unwrap().train
}

fn trained(settings: &Settings, how: Parallelism) -> Vec<Trained> {
    train(settings, how, Local::world(settings.ranks), &images(), &device()).unwrap()
}

fn initial(settings: &Settings) -> Network {
    train_alone(&Settings { steps: 0, ..settings.clone() }, &images(), &device()).0
}

#[test]
fn hybrid_data_parallel_and_one_process_train_the_same_network() {
    for ranks in [1, 2, 3] {
        let settings = settings(ranks);
        let (alone, losses) = train_alone(&settings, &images(), &device());
        let moved = largest_difference(&initial(&settings), &alone);
        assert!(moved > 0.05, "{moved}: too little to see a difference");
        for how in [Parallelism::Data, Parallelism::Hybrid] {
            let all = trained(&settings, how);
            for (rank, one) in all.iter().enumerate() {
                let difference = largest_difference(&alone, &one.network);
                assert!(difference < 1e-5, "{how:?}, rank {rank} of {ranks}: {difference}");
            }
            for (step, loss) in losses.iter().enumerate() {
                let mean = all.iter().map(|rank| rank.losses[step]).sum::<f32>() / ranks as f32;
                assert!((mean - loss).abs() < 1e-5, "{how:?}, step {step} on {ranks}: {mean}, alone {loss}");
            }
        }
    }
}

/// Returns the bytes of a step header to every other rank: 105 bytes, and a bit for each slot, of which a layer has two.
fn header(layers: usize, ranks: usize) -> u64 {
    ((105 + (2 * layers).div_ceil(8)) * (ranks - 1)) as u64
}

#[test]
fn bytes_are_those_of_the_formulas() {
    for ranks in [1, 2, 3] {
        let settings = settings(ranks);
        let network = initial(&settings);
        let convolutions = trainable_parameters(&network.convolutions);
        let all = convolutions + settings.plan.head_parameters();
        assert_eq!([trainable_parameters(&network), settings.plan.parameters()], [all; 2]);
        let ring = |values: usize, rank| all_reduce_traffic(values, ranks, rank).sent;
        for (rank, one) in trained(&settings, Parallelism::Data).iter().enumerate() {
            assert_eq!(one.bytes, [ring(all, rank) + header(4 + 3, ranks); 6]);
        }
        let hybrid = trained(&settings, Parallelism::Hybrid);
        for (rank, one) in hybrid.iter().enumerate() {
            let rest: Vec<_> = one.bytes.iter().zip(&one.activation_bytes).map(|(all, head)| all - head).collect();
            assert_eq!(rest, [ring(convolutions, rank) + header(4, ranks); 6]);
        }
        // 2(W-1)·B·(F + 2H + C/W) values a rank, where both hidden layers have H outputs: here 11 and 7. Times W, for all ranks:
        let values = 2 * (ranks - 1) * 4 * (ranks * (48 + 11 + 7) + 5);
        let sent = |step| hybrid.iter().map(|rank| rank.activation_bytes[step]).sum::<u64>();
        assert_eq!((0..6).map(sent).collect::<Vec<_>>(), [4 * values as u64; 6]);
    }
}

#[test]
fn a_wide_head_sends_less_when_it_is_split_and_a_narrow_one_more() {
    let sent = |hidden, batch, how| {
        let plan = Plan { hidden: vec![hidden; 2], ..plan() };
        let batch = NonZeroUsize::new(batch).unwrap();
        trained(&Settings { plan, batch, steps: 1, ..settings(2) }, how)[0].bytes[0]
    };
    // Of the head a rank sends 2B·(F + 2H + C/2) values when it is split over two ranks, else its (F + 1 + H + 1 + C)·H + C
    // parameters: 1 002 against 15 505 · 20 040 against 15 505 · 1 128 against 655.
    for (hidden, batch, fewer) in
        [(100, 2, Parallelism::Hybrid), (100, 40, Parallelism::Data), (10, 8, Parallelism::Data)]
    {
        let [data, hybrid] = [Parallelism::Data, Parallelism::Hybrid].map(|how| sent(hidden, batch, how));
        assert_eq!(hybrid < data, fewer == Parallelism::Hybrid, "head {hidden}, batch {batch}: {hybrid} and {data}");
    }
}

#[test]
fn a_head_that_is_narrower_than_the_world_is_refused() {
    let settings = settings(6);
    let said = "layer 3 of 3 of the head has 5 outputs for 6 ranks, and each rank holds one at least: take at most 5 ranks, or a \
                wider layer";
    let error = train(&settings, Parallelism::Hybrid, Local::world(6), &images(), &device()).unwrap_err();
    assert_eq!(error.to_string(), said);
    let head = initial(&settings).head;
    let error = SplitHead::new(&head, SgdConfig::new().init(), 0, 6).unwrap_err();
    assert_eq!(error.to_string(), said);
    SplitHead::new(&head, SgdConfig::new().init(), 0, 5).unwrap();
}

fn program(flags: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hybrid")).args(flags.split_whitespace()).output().unwrap()
}

#[test]
fn the_program_s_table_has_a_rank_s_mean_bytes_of_a_step() {
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("hybrid.csv");
    let ended = program(&format!("--head 7,300 --batch 2 --ranks 3 --steps 2 --csv {}", path.display()));
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let mut csv = csv::Reader::from_path(path).unwrap();
    let columns = csv.headers().unwrap().clone();
    let rows: Vec<_> = csv.records().map(Result::unwrap).collect();
    let of = |row: usize, column| &rows[row][columns.iter().position(|name| name == column).unwrap()];
    // 2(W-1)·B·(F + 2H + C/W) values of 4 bytes: 32·(128 + 2·7 + 10/3), 32·(128 + 2·300 + 10/3).
    let bytes = |row| of(row, "hybrid_activation_bytes").parse::<f64>().unwrap().round();
    assert_eq!([bytes(0), bytes(1)], [4651.0, 23403.0]);
    // 2(W-1)/W·(577 120 + P) of them, and the header: two times 105 bytes and a bit for each of 22 slots.
    let bytes = |row| of(row, "data_parallel_bytes").parse::<f64>().unwrap().round();
    let ring = |head: f64| (16.0 / 3.0 * (577_120.0 + head)).round() + 216.0;
    assert_eq!(
        [bytes(0), bytes(1)],
        [ring(129.0 * 7.0 + 8.0 * 7.0 + 80.0), ring(129.0 * 300.0 + 301.0 * 300.0 + 3010.0)]
    );
    assert_eq!([of(0, "faster"), of(1, "faster")], ["data-parallel", "hybrid"]);
}

#[test]
fn the_program_names_the_flags_of_a_head_that_is_too_narrow() {
    let ended = program("--head 512,3 --ranks 2,4");
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert!(
        said.starts_with("error: --head 3 --ranks 4: layer 1 of 3 of the head has 3 outputs for 4 ranks"),
        "{said}"
    );
    assert!(ended.stdout.is_empty());
}
