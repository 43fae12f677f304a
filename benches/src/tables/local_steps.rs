//! Local steps on constant links: DiLoCo with constant periods, and with one that follows the link.

use super::{Model, Row, Table, never_slower};

/// Dense, top-k 20x and DiLoCo, replayed; adaptive local steps, run on each network.
pub const TABLE: Table = Table {
    name: "local-steps",
    trainer: None,
    models: &[Model::BiLstm],
    rows,
    networks: never_slower::TABLE.networks,
    compute: "50ms",
    rate: None,
};

fn rows(model: Model) -> Vec<Row> {
    let mut rows = vec![Row::dense(), Row::corrected("topk:20x:q8", model)];
    rows.extend(Row::local(model));
    rows.push(Row::auto_local(model));
    rows
}
