//! Catalog of the official data sets: file names, lengths, checksums, addresses, class names.

/// An official file.
#[derive(Debug, PartialEq)]
pub(crate) struct Official {
    pub(crate) name: &'static str,
    pub(crate) bytes: usize,
    pub(crate) md5: &'static str,
}

/// The training or the test files of a data set.
#[derive(Debug)]
pub(crate) struct Part {
    /// `training` or `test`, for messages.
    pub(crate) role: &'static str,
    pub(crate) official: &'static [Official],
    /// Files `prefix*.extension` are accepted as a subset if no official name is present.
    pub(crate) prefix: &'static str,
}

/// An official data set and where it comes from.
#[derive(Debug)]
pub(crate) struct Catalog {
    /// Display name.
    pub(crate) name: &'static str,
    /// Its folder in this crate's cache directory.
    pub(crate) folder: &'static str,
    /// The folder inside the official archive.
    pub(crate) archive_folder: &'static str,
    /// Folder below the cache directory in which Burn keeps the same files.
    pub(crate) burn_folder: Option<&'static str>,
    pub(crate) extension: &'static str,
    pub(crate) train: Part,
    pub(crate) test: Part,
    /// Address of the directory that holds the archive.
    pub(crate) base_url: &'static str,
    pub(crate) archive: &'static str,
    pub(crate) archive_md5: &'static str,
}

impl Catalog {
    /// Returns all official files, training files first.
    pub(crate) fn official(&self) -> impl Iterator<Item = &'static Official> {
        self.train.official.iter().chain(self.test.official)
    }

    /// Describes the wanted files.
    pub(crate) fn wanted(&self) -> String {
        let names: Vec<_> = self.official().map(|file| file.name).collect();
        format!(
            "{} (also accepted: a subset named {}*.{ext} and {}*.{ext}; also in a folder {} or {})",
            names.join(", "),
            self.train.prefix,
            self.test.prefix,
            self.archive_folder,
            self.folder,
            ext = self.extension,
        )
    }
}

const fn official(name: &'static str, bytes: usize, md5: &'static str) -> Official {
    Official { name, bytes, md5 }
}

/// Lengths and checksums: <https://www.cs.toronto.edu/~kriz/cifar.html> and the files themselves.
pub(crate) static CIFAR10: Catalog = Catalog {
    name: "CIFAR-10",
    folder: "cifar10",
    archive_folder: "cifar-10-batches-bin",
    burn_folder: None,
    extension: "bin",
    train: Part {
        role: "training",
        prefix: "data_batch",
        official: &[
            official("data_batch_1.bin", 30_730_000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
            official("data_batch_2.bin", 30_730_000, "5ea93a67294ea407fff1d09f752e9692"),
            official("data_batch_3.bin", 30_730_000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
            official("data_batch_4.bin", 30_730_000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
            official("data_batch_5.bin", 30_730_000, "53f37980c15c3d472c316c40844f3f0d"),
        ],
    },
    test: Part {
        role: "test",
        prefix: "test_batch",
        official: &[official("test_batch.bin", 30_730_000, "803d5f7f4d78ea53de84dbe85f74fb6d")],
    },
    base_url: "https://www.cs.toronto.edu/~kriz",
    archive: "cifar-10-binary.tar.gz",
    archive_md5: "c32a1d4ab5d03f1284b67883e8d87530",
};

/// As for [`CIFAR10`].
pub(crate) static CIFAR100: Catalog = Catalog {
    name: "CIFAR-100",
    folder: "cifar100",
    archive_folder: "cifar-100-binary",
    burn_folder: None,
    extension: "bin",
    train: Part {
        role: "training",
        prefix: "train",
        official: &[official("train.bin", 153_700_000, "6172c7755cfe09b2fe270c85cebc1b15")],
    },
    test: Part {
        role: "test",
        prefix: "test",
        official: &[official("test.bin", 30_740_000, "4499cfba6c016c1be1438163640a0898")],
    },
    base_url: "https://www.cs.toronto.edu/~kriz",
    archive: "cifar-100-binary.tar.gz",
    archive_md5: "03b5dce01913d631647c71ecec9e9cb8",
};

/// The archive is the mirror that Burn uses, with the checksum that fastai publishes for it. The checksums of the CSV
/// files are torchtext's.
pub(crate) static AG_NEWS: Catalog = Catalog {
    name: "AG-News",
    folder: "ag_news",
    archive_folder: "ag_news_csv",
    burn_folder: Some("burn-dataset/ag_news_csv"),
    extension: "csv",
    train: Part {
        role: "training",
        prefix: "train",
        official: &[official("train.csv", 29_470_338, "b1a00f826fdfbd249f79597b59e1dc12")],
    },
    test: Part {
        role: "test",
        prefix: "test",
        official: &[official("test.csv", 1_857_427, "d52ea96a97a2d943681189a97654912d")],
    },
    base_url: "https://s3.amazonaws.com/fast-ai-nlp",
    archive: "ag_news_csv.tgz",
    archive_md5: "b86f328f4dbd072486591cb7a5644dcd",
};

pub(crate) const CIFAR10_CLASSES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

/// The fine classes, in label order (which is alphabetical).
#[rustfmt::skip]
pub(crate) const CIFAR100_CLASSES: [&str; 100] = [
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle",
    "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle",
    "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur",
    "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard",
    "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain",
    "mouse", "mushroom", "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree",
    "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road", "rocket",
    "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider",
    "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone", "television", "tiger", "tractor",
    "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm",
];

pub(crate) const AG_NEWS_CLASSES: [&str; 4] = ["World", "Sports", "Business", "Sci/Tech"];
