//! DQ-SGD's table: accuracy and mean bits of quantizers with fixed and with adaptive widths.

use super::{Model, Row, Table};

/// Its rows, in our setting.
pub const TABLE: Table = Table {
    name: "dq-sgd",
    trainer: None,
    models: &[Model::ResNet8, Model::BiLstm],
    rows,
    networks: |_| vec!["unlimited"],
    compute: "50ms",
    rate: None,
};

fn rows(model: Model) -> Vec<Row> {
    // Of a run: its budget of bits is met at its end.
    let steps = if model == Model::BiLstm { 250 } else { 237 };
    let adaptive = |name: &str, controller: &str| {
        Row::new(name, format!("--compressor qsgd:4 --feedback none --controller {controller}"))
    };
    vec![
        Row::dense(),
        Row::new("signSGD", "--compressor plain-sign --feedback none"),
        Row::new("TernGrad", "--compressor terngrad --feedback none"),
        Row::new("QSGD 4 bits", "--compressor qsgd:4 --feedback none"),
        Row::new("QSGD 5 bits", "--compressor qsgd:5 --feedback none"),
        Row::new("QSGD 6 bits", "--compressor qsgd:6 --feedback none"),
        adaptive("AdaQS", "adaqs:2,max=8"),
        adaptive("DQ-SGD 4", &format!("dqsgd:4,steps={steps}")),
        adaptive("DQ-SGD 4.5", &format!("dqsgd:4.5,steps={steps}")),
    ]
}
