//! Writes settings as a text: a serializer for flat structs that omits fields with their default value.

use std::borrow::Cow;
use std::fmt::{self, Display};

use serde::Serialize;
use serde::ser::{Error, Impossible, SerializeStruct, Serializer};

/// Writes the name, then by place the first field and those up to the last of `places` that differs from its default, then by key every
/// other field that differs.
///
/// # Errors
/// Those of the formatter, and an error if the settings are not a flat struct.
pub(crate) fn write<T: Serialize + Default>(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    places: usize,
    settings: &T,
) -> fmt::Result {
    f.write_str(name)?;
    let fields = settings.serialize(Fields).map_err(|_| fmt::Error)?;
    let defaults = T::default().serialize(Fields).map_err(|_| fmt::Error)?;
    let differs = |field: &Field| !defaults.contains(field);
    // A field without a value cannot stand by place.
    let by_place = fields.iter().take(places).take_while(|(_, value)| value.is_some());
    let placed = by_place.enumerate().filter(|(index, field)| *index == 0 || differs(field)).last();
    let placed = placed.map_or(0, |(index, _)| index + 1);
    let mut separator = ':';
    for (index, (key, value)) in fields.iter().enumerate() {
        let Some(value) = value.as_ref().filter(|_| index < placed || differs(&fields[index])) else { continue };
        let value = if places > 1 && value.contains(':') { format!("({value})").into() } else { bracketed(value) };
        if index < placed {
            write!(f, ":{value}")?;
        } else {
            write!(f, "{separator}{}={value}", key.replace('_', "-"))?;
        }
        separator = ',';
    }
    Ok(())
}

/// Returns a value as it stands in a text: in parentheses if it is empty or has the marks of a text.
pub(crate) fn bracketed(value: &str) -> Cow<'_, str> {
    if value.is_empty() || value.contains([',', '=', '(', ')']) { format!("({value})").into() } else { value.into() }
}

/// A field's name and the text of its value; `None` if it has no value.
type Field = (&'static str, Option<String>);

/// The reason that something cannot be written.
#[derive(Debug)]
pub(super) struct Unwritable(String);

impl Display for Unwritable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unwritable {}

impl Error for Unwritable {
    fn custom<T: Display>(what: T) -> Self {
        Unwritable(what.to_string())
    }
}

fn not_flat<T>() -> Result<T, Unwritable> {
    Err(Error::custom("settings are flat structs"))
}

/// Serializer of a struct.
struct Fields;
/// Serializer of a field.
struct Value;
/// The fields written so far.
struct Collected(Vec<Field>);

impl SerializeStruct for Collected {
    type Ok = Vec<Field>;
    type Error = Unwritable;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Unwritable> {
        self.0.push((key, value.serialize(Value)?));
        Ok(())
    }

    /// Keeps the position of a skipped field, so that the field after it does not count as the first.
    fn skip_field(&mut self, key: &'static str) -> Result<(), Unwritable> {
        self.0.push((key, None));
        Ok(())
    }

    fn end(self) -> Result<Vec<Field>, Unwritable> {
        Ok(self.0)
    }
}

/// Rejects what neither a struct nor a field can be.
macro_rules! no_compounds {
    ($struct:ty) => {
        type Error = Unwritable;
        type SerializeSeq = Impossible<Self::Ok, Unwritable>;
        type SerializeTuple = Impossible<Self::Ok, Unwritable>;
        type SerializeTupleStruct = Impossible<Self::Ok, Unwritable>;
        type SerializeTupleVariant = Impossible<Self::Ok, Unwritable>;
        type SerializeMap = Impossible<Self::Ok, Unwritable>;
        type SerializeStruct = $struct;
        type SerializeStructVariant = Impossible<Self::Ok, Unwritable>;

        fn serialize_bytes(self, _: &[u8]) -> Result<Self::Ok, Unwritable> {
            not_flat()
        }
        fn serialize_newtype_variant<T: Serialize + ?Sized>(
            self,
            _: &'static str,
            _: u32,
            _: &'static str,
            _: &T,
        ) -> Result<Self::Ok, Unwritable> {
            not_flat()
        }
        fn serialize_seq(self, _: Option<usize>) -> Result<Self::SerializeSeq, Unwritable> {
            not_flat()
        }
        fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, Unwritable> {
            not_flat()
        }
        fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeTupleStruct, Unwritable> {
            not_flat()
        }
        fn serialize_tuple_variant(
            self,
            _: &'static str,
            _: u32,
            _: &'static str,
            _: usize,
        ) -> Result<Self::SerializeTupleVariant, Unwritable> {
            not_flat()
        }
        fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, Unwritable> {
            not_flat()
        }
        fn serialize_struct_variant(
            self,
            _: &'static str,
            _: u32,
            _: &'static str,
            _: usize,
        ) -> Result<Self::SerializeStructVariant, Unwritable> {
            not_flat()
        }
    };
}

macro_rules! scalars {
    ($($method:ident $type:ty),* => |$value:ident| $result:expr) => {
        $(fn $method(self, $value: $type) -> Result<Self::Ok, Unwritable> { $result })*
    };
}

impl Serializer for Fields {
    type Ok = Vec<Field>;
    no_compounds!(Collected);

    scalars! {
        serialize_bool bool, serialize_i8 i8, serialize_i16 i16, serialize_i32 i32, serialize_i64 i64, serialize_u8 u8,
        serialize_u16 u16, serialize_u32 u32, serialize_u64 u64, serialize_f32 f32, serialize_f64 f64, serialize_char char,
        serialize_str &str => |_value| not_flat()
    }
    fn serialize_none(self) -> Result<Vec<Field>, Unwritable> {
        not_flat()
    }
    fn serialize_some<T: Serialize + ?Sized>(self, _: &T) -> Result<Vec<Field>, Unwritable> {
        not_flat()
    }
    fn serialize_unit(self) -> Result<Vec<Field>, Unwritable> {
        Ok(Vec::new())
    }
    fn serialize_unit_struct(self, _: &'static str) -> Result<Vec<Field>, Unwritable> {
        Ok(Vec::new())
    }
    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Result<Vec<Field>, Unwritable> {
        not_flat()
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        it: &T,
    ) -> Result<Vec<Field>, Unwritable> {
        it.serialize(self)
    }
    fn serialize_struct(self, _: &'static str, len: usize) -> Result<Collected, Unwritable> {
        Ok(Collected(Vec::with_capacity(len)))
    }
}

impl Serializer for Value {
    type Ok = Option<String>;
    no_compounds!(Impossible<Self::Ok, Unwritable>);

    scalars! {
        serialize_bool bool, serialize_i8 i8, serialize_i16 i16, serialize_i32 i32, serialize_i64 i64, serialize_u8 u8,
        serialize_u16 u16, serialize_u32 u32, serialize_u64 u64, serialize_f32 f32, serialize_f64 f64, serialize_char char,
        serialize_str &str => |value| Ok(Some(value.to_string()))
    }
    fn serialize_none(self) -> Result<Option<String>, Unwritable> {
        Ok(None)
    }
    fn serialize_some<T: Serialize + ?Sized>(self, it: &T) -> Result<Option<String>, Unwritable> {
        it.serialize(self)
    }
    fn serialize_unit(self) -> Result<Option<String>, Unwritable> {
        not_flat()
    }
    fn serialize_unit_struct(self, _: &'static str) -> Result<Option<String>, Unwritable> {
        not_flat()
    }
    fn serialize_unit_variant(self, _: &'static str, _: u32, name: &'static str) -> Result<Option<String>, Unwritable> {
        Ok(Some(name.to_owned()))
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        it: &T,
    ) -> Result<Option<String>, Unwritable> {
        let text = it.serialize(self)?;
        // A ratio is displayed with an x.
        Ok(if name == "CompressionRatio" { text.map(|text| text + "x") } else { text })
    }
    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeStruct, Unwritable> {
        not_flat()
    }
}
