//! Values that settings write as a text.

/// What serde's `try_from = "String"` and `into = "String"` ask of a type that has `FromStr` and `Display`.
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
pub(crate) use serde_as_text;
