//! Near-limit table: links on which dense spends 90 % of a step in the exchange.

use super::{Model, Row, Table};

/// Dense, `auto` (also with its exchange during the backward pass, and with local steps), and static top-k with its value codes; each also
/// on an unlimited network.
pub const TABLE: Table = Table {
    name: "near-limit",
    trainer: None,
    models: &Model::ALL,
    rows,
    // 450 ms next to 50 ms of computing: each rank sends 3/2 of the gradient's bytes. Seven of 50 µs are the ring's latency.
    networks: |model| match model {
        Model::ResNet8 => vec!["8.2mbit,50us", "unlimited"],
        Model::Vgg11Slim => vec!["61mbit,50us", "unlimited"],
        Model::BiLstm => vec!["148mbit,50us", "unlimited"],
    },
    compute: "50ms",
    rate: None,
};

fn rows(model: Model) -> Vec<Row> {
    let top_k = [20, 50, 100].map(|ratio| Row::corrected(&format!("topk:{ratio}x:q8"), model));
    let hidden = Row::new("auto, during backward", "--set during_backward=true").reading_seconds();
    [Row::dense()].into_iter().chain(top_k).chain([Row::auto(), hidden, Row::auto_local(model)]).collect()
}
