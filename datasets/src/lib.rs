//! Data sets for Briquette's examples and experiments: CIFAR-10, CIFAR-100, AG-News, and generated data in the same
//! shapes that needs no file and no network.
//!
//! All data are plain host memory: images are `Vec<f32>` in NCHW order, texts are `Vec<i64>` of word ids, labels are
//! `Vec<i64>`. This crate does not depend on Burn.
//!
//! | step | type |
//! |---|---|
//! | describe the data set | [`ImageSource`], [`TextSource`] |
//! | find it, download it, check it | `load()`, with [`Download`] for the details |
//! | assign samples to ranks and steps | [`Shards`], [`EpochPlan`] |
//! | fill a batch | [`ImageSet::batch`] (with [`Augment`]), [`TextSet::batch`] |
//!
//! Random choices are keyed (see [`briquette_core::Key`]): the order of an epoch, the crop of an image and every
//! generated pixel are functions of the seed and of the index of the epoch, image or pixel. They do not depend on the
//! number of ranks and threads, and a resumed run needs no saved random state.
//!
//! ```
//! use briquette_core::Key;
//! use briquette_datasets::{Augment, ImageKind, ImageSource, Shards};
//!
//! let mut source = ImageSource::new(ImageKind::Generated { classes: 10 });
//! source.train_limit = Some(100);
//! let images = source.load()?;
//!
//! let (key, epoch, rank) = (Key::new(source.seed), 0, 1);
//! let plan = Shards::new(images.train.len(), 3, 8)?.epoch(key, epoch); // 3 ranks, 8 samples each per step
//! assert_eq!(plan.steps(), 5);                                         // four of 24, and a last one of 4
//! assert_eq!(plan.counts(4), [2, 1, 1]);                               // for weighting the means
//!
//! let augment = Augment::crop_and_flip();
//! let augment_key = key.purpose("augment").step(epoch);
//! let batch = images.train.batch(plan.indices(0, rank), Some((&augment, augment_key)));
//! assert_eq!(batch.pixels.len(), 8 * 3 * 32 * 32);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Search path
//!
//! If a directory is given (`--data DIR`), the files must be in it or in a folder in it with the name that the official
//! archive or this crate uses (`cifar-10-batches-bin` or `cifar10`, `cifar-100-binary` or `cifar100`, `ag_news_csv` or
//! `ag_news`). It is an error if that does not hold at least one training and one test file.
//!
//! If none is given, the first directory with such files is used, in this order:
//!
//! 1. the user's cache directory, `briquette/cifar10`, `briquette/cifar100`, `briquette/ag_news`;
//! 2. for AG-News, the folder `burn-dataset/ag_news_csv` of the cache directory, where Burn's own downloader keeps the
//!    same CSV files. Burn's CIFAR folders are not used: they hold one PNG per image, which is not the official binary
//!    format;
//! 3. otherwise the archive is downloaded into 1., verified against its MD5, unpacked under a temporary name and
//!    renamed. Processes that need the same data set at the same time wait for the first one.
//!
//! # Verification
//!
//! A file with an official name and the official length must have the official MD5. Anything else with whole records is
//! accepted as a subset, and the `notes` of the loaded data say so: a shorter file, another name with the same prefix
//! (`train_partial.csv`, `data_batch_1_small.bin`), a missing batch file. Empty files, cut records, labels out of range
//! and malformed rows are errors that name the file and the position.
//!
//! # Terms of the data
//!
//! CIFAR: A. Krizhevsky, *Learning Multiple Layers of Features from Tiny Images*, 2009. AG-News: A. Gulli's corpus
//! in the version of X. Zhang, J. Zhao and Y. LeCun, *Character-level Convolutional Networks for Text
//! Classification*, 2015; for research and other non-commercial use.

mod ag_news;
mod augment;
mod catalog;
mod chars;
mod cifar;
mod download;
mod error;
mod find;
mod generated_images;
mod generated_text;
mod image;
mod split;
mod text;
mod verify;
mod vocabulary;

pub use augment::Augment;
pub use briquette_core::shards::{EpochPlan, Shards};
pub use chars::{CHARACTERS, CharBatch, CharSet, Chars};
pub use download::{Download, Mirror};
pub use error::DataError;
pub use image::{CHANNELS, ImageBatch, ImageKind, ImageSet, ImageSource, Images, Normalization, PIXELS, SIDE};
pub use split::by_label;
pub use text::{TextBatch, TextKind, TextSet, TextSource, Texts};
pub use vocabulary::{PADDING, UNKNOWN, Vocabulary, words};
