//! Vectors to compress: drawn, or recorded in training.

use std::path::Path;

use anyhow::{Context, Result};
use briquette::core::Key;
use briquette_cli::file;
use clap::ValueEnum;

/// Source of the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Source {
    /// Independent Gaussian values.
    Gaussian,
    /// Independent values of a Laplace distribution: heavier tails.
    Laplace,
    /// A gradient of ResNet-20 on CIFAR-10, again and again.
    Resnet20,
    /// A gradient of a BiLSTM on AG-News, most of it an embedding's zeros, again and again.
    Bilstm,
}

impl Source {
    /// All sources.
    pub const ALL: [Source; 4] = [Source::Gaussian, Source::Laplace, Source::Resnet20, Source::Bilstm];

    /// Returns its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Source::Gaussian => "gaussian",
            Source::Laplace => "laplace",
            Source::Resnet20 => "resnet20",
            Source::Bilstm => "bilstm",
        }
    }

    /// Returns `count` values, the same ones every time.
    ///
    /// # Errors
    /// If a recorded gradient cannot be read.
    pub fn values(self, count: usize) -> Result<Vec<f32>> {
        match self {
            Source::Gaussian | Source::Laplace => Ok(self.draw(count)),
            Source::Resnet20 | Source::Bilstm => {
                let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("data/{}.safetensors", self.name()));
                let recorded = file::read(&path).context("a recorded gradient")?.values;
                Ok(recorded.iter().copied().cycle().take(count).collect())
            }
        }
    }

    fn draw(self, count: usize) -> Vec<f32> {
        let mut words = vec![0; 2 * count];
        Key::new(1).purpose("codecs").lanes(0).fill(&mut words);
        // Uniform in (0, 1).
        let uniform = |word: u32| (f64::from(word) + 0.5) / 2_f64.powi(32);
        let value = |pair: &[u32; 2]| {
            let (u, v) = (uniform(pair[0]), uniform(pair[1]));
            match self {
                // G. E. P. Box, M. E. Muller, 1958.
                Source::Gaussian => (-2.0 * u.ln()).sqrt() * (2.0 * std::f64::consts::PI * v).cos(),
                _ => u.ln() * if v < 0.5 { 1.0 } else { -1.0 },
            }
        };
        words.as_chunks().0.iter().map(|pair| value(pair) as f32).collect()
    }
}
