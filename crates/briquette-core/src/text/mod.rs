//! Text format of settings: `name:first,key=value`, read and written by serde.
//!
//! The settings of an algorithm are a flat struct, which determines its text: the name, a colon, the first field by position, then
//! further fields by name, in any order. An algorithm may have several fields by position, separated by colons; compressors do. A
//! missing field takes its default. Writing omits the fields that equal their default, except for the first, and for those by position
//! before one that differs. If a value is itself the text of an algorithm and contains commas, it stands in parentheses.
//!
//! | text | settings |
//! |---|---|
//! | `krum:1,keep=3` | `Krum { byzantine: 1, keep: 3 }` |
//! | `krum:keep=3,byzantine=1` | the same |
//! | `mean` | `Mean` |
//! | `qsgd:4:64`, `qsgd:4,bucket=64` | `Qsgd` with two fields by position: 4 bits, buckets of 64 values |

mod read;
mod write;

pub(crate) use read::{is_key, read};
pub(crate) use write::{bracketed, write};

/// Implements the conversions that serde's `try_from = "String"` and `into = "String"` need, for a type with `FromStr` and `Display`.
#[doc(hidden)]
#[macro_export]
macro_rules! serde_as_text {
    ($type:ty) => {
        impl TryFrom<String> for $type {
            type Error = $crate::error::ConfigError;
            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> String {
                value.to_string()
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::CompressionRatio;

    #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum Word {
        Plain,
        InTwo,
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct All {
        ratio: CompressionRatio,
        count: usize,
        share: f64,
        clip: f32,
        on: bool,
        word: Word,
        maybe: Option<u64>,
        nested: String,
    }

    impl Default for All {
        fn default() -> Self {
            let ratio = CompressionRatio::new(10.0).unwrap();
            let (word, nested) = (Word::Plain, String::new());
            All { ratio, count: 3, share: 0.5, clip: 2.5, on: false, word, maybe: None, nested }
        }
    }

    fn text_with(places: usize, settings: &All) -> String {
        struct Shown<'a>(usize, &'a All);
        impl std::fmt::Display for Shown<'_> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write(f, "all", self.0, self.1)
            }
        }
        Shown(places, settings).to_string()
    }

    fn parse_with(places: usize, text: &str) -> Result<All, String> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        assert_eq!(name, "all");
        read("algorithm", text, settings, places).map_err(|error| error.to_string())
    }

    fn text(settings: &All) -> String {
        text_with(1, settings)
    }

    fn parse(text: &str) -> Result<All, String> {
        parse_with(1, text)
    }

    #[test]
    fn several_settings_stand_by_place() {
        let ratio = CompressionRatio::new(20.0).unwrap();
        let settings = All { ratio, share: 0.25, ..All::default() };
        assert_eq!(text_with(3, &settings), "all:20x:3:0.25");
        assert_eq!(text_with(2, &settings), "all:20x,share=0.25");
        for written in ["all:20x:3:0.25", "all:20x,share=0.25", "all:20x:3,share=0.25", "all:share=0.25,ratio=20"] {
            assert_eq!(parse_with(3, written).as_ref(), Ok(&settings), "{written}");
        }
        assert_eq!(text_with(3, &All { on: true, ..All::default() }), "all:10x,on=true");
        // A field without a value ends the places; a colon within a value is not one between places.
        for nested in ["a:b", "", "a,b"] {
            let settings = All { nested: nested.into(), ..All::default() };
            let written = text_with(8, &settings);
            assert!(nested.is_empty() || written == format!("all:10x,nested=({nested})"), "{written}");
            assert_eq!(parse_with(8, &written), Ok(settings));
        }
        let settings = All { maybe: Some(1), nested: "a:b".into(), ..All::default() };
        assert_eq!(text_with(8, &settings), "all:10x:3:0.5:2.5:false:plain:1:(a:b)");
        assert_eq!(parse_with(8, &text_with(8, &settings)), Ok(settings));
        let error = |text| parse_with(2, text).unwrap_err();
        assert!(error("all:20x:3:0.5").contains("`3:0.5`"), "{}", error("all:20x:3:0.5"));
        assert!(error("all:20x:3,count=3").contains("`count` is given twice"));
    }

    #[test]
    fn settings_are_read_by_place_and_by_name() {
        assert_eq!(parse("all"), Ok(All::default()));
        let ratio = CompressionRatio::new(20.0).unwrap();
        for written in ["all:20x", "all:20", "all:ratio=20x", "all:ratio=20"] {
            assert_eq!(parse(written), Ok(All { ratio, ..All::default() }), "{written}");
        }
        let expected = All {
            ratio,
            count: 7,
            share: 0.25,
            clip: f32::INFINITY,
            on: true,
            word: Word::InTwo,
            maybe: Some(u64::MAX),
            nested: "topk:0.1,values=q8".into(),
        };
        let written = "all:20x,count=7,on=true,word=in-two,share=0.25,maybe=18446744073709551615,clip=inf,\
                       nested=(topk:0.1,values=q8)";
        assert_eq!(parse(written), Ok(expected.clone()));
        assert_eq!(parse(&text(&expected)), Ok(expected));
    }

    #[test]
    fn what_is_written_is_what_differs_and_the_first() {
        assert_eq!(text(&All::default()), "all:10x");
        assert_eq!(text(&All { word: Word::InTwo, maybe: Some(3), ..All::default() }), "all:10x,word=in-two,maybe=3");
        assert_eq!(text(&All { nested: "a:b=1,c".into(), ..All::default() }), "all:10x,nested=(a:b=1,c)");
        for nested in ["(a)(b)", "((a),b)", "()", "a=b", "x"] {
            let settings = All { nested: nested.into(), ..All::default() };
            assert_eq!(parse(&text(&settings)), Ok(settings), "{nested}");
        }
    }

    #[test]
    fn what_cannot_be_read_names_the_key_and_what_is_valid() {
        for (written, words) in [
            ("all:cuont=3", &["`all:cuont=3`", "unknown field `cuont`", "`count`"][..]),
            ("all:count=many", &["`count`", "`many`", "whole number"]),
            ("all:count=-1", &["`count`", "`-1`", "whole number"]),
            ("all:share=much", &["`share`", "`much`", "a number"]),
            ("all:on=maybe", &["`on`", "`maybe`", "true, false"]),
            ("all:word=three", &["`word`", "unknown variant `three`", "`plain`", "`in-two`"]),
            ("all:0.5x", &["`ratio`", "at least 1"]),
            ("all:count=3x", &["`count`", "`3x`", "whole number"]),
            ("all:20x,3", &["`3`", "KEY=VALUE"]),
            ("all:20x,ratio=10x", &["`ratio`", "twice"]),
            ("all:,", &["KEY=VALUE"]),
            ("all:nested=(a", &["parenthesis"]),
            ("all:nested=a)", &["parenthesis"]),
            ("all:nested=)a(", &["parenthesis"]),
        ] {
            let error = parse(written).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{written}: {error}");
        }
    }
}
