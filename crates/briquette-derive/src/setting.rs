//! One setting: a field with its default, range and syntax.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::{Error, Expr, ExprLit, Field, GenericArgument, Ident, Lit, LitStr, Path, PathArguments, Result, Type};

use crate::interval::{At, End, Interval};

/// A field of the settings, with its attribute.
pub(crate) struct Setting<'a> {
    ident: &'a Ident,
    ty: &'a Type,
    default: Option<Expr>,
    range: Option<LitStr>,
    syntax: Option<LitStr>,
    /// Set if it has no text: `#[serde(skip)]`.
    skipped: bool,
}

/// A type that has ranges.
#[derive(Clone, Copy, PartialEq)]
enum Number {
    Whole,
    Real,
    Ratio,
}

/// Returns the kind of number of a type, the type itself, and whether it is optional.
fn number(ty: &Type) -> Option<(Number, &Type, bool)> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last()?;
    match (last.ident.to_string().as_str(), &last.arguments) {
        ("Option", PathArguments::AngleBracketed(of)) => match of.args.first()? {
            GenericArgument::Type(inner) => number(inner).map(|(number, ty, _)| (number, ty, true)),
            _ => None,
        },
        ("u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64", _) => Some((Number::Whole, ty, false)),
        ("f32" | "f64", _) => Some((Number::Real, ty, false)),
        ("CompressionRatio", _) => Some((Number::Ratio, ty, false)),
        _ => None,
    }
}

impl<'a> Setting<'a> {
    pub(crate) fn of(field: &'a Field) -> Result<Self> {
        let ident = field.ident.as_ref().expect("a named field");
        let (default, range, syntax, skipped) = (None, None, None, false);
        let mut own = Setting { ident, ty: &field.ty, default, range, syntax, skipped };
        for attribute in &field.attrs {
            if attribute.path().is_ident("setting") {
                attribute.parse_nested_meta(|meta| {
                    let key = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
                    match key.as_str() {
                        "default" => own.default = Some(meta.value()?.parse()?),
                        "range" => own.range = Some(meta.value()?.parse()?),
                        "syntax" => own.syntax = Some(meta.value()?.parse()?),
                        _ => return Err(meta.error("a setting has default, range and syntax")),
                    }
                    Ok(())
                })?;
            } else if attribute.path().is_ident("serde") {
                // Other words are serde's to judge.
                let _ = attribute.parse_nested_meta(|meta| {
                    own.skipped |= meta.path.is_ident("skip");
                    Ok(())
                });
            }
        }
        Ok(own)
    }

    /// Returns the name in texts.
    fn key(&self) -> String {
        self.ident.to_string().replace('_', "-")
    }

    /// Returns the field with its default.
    pub(crate) fn default(&self, name: &str) -> TokenStream {
        let ident = self.ident;
        match &self.default {
            None => quote!(#ident: ::core::default::Default::default()),
            Some(Expr::Lit(ExprLit { lit: Lit::Str(text), .. })) => {
                let why = format!("the default of {} of {name} is a valid text", self.key());
                quote_spanned!(text.span()=> #ident: #text.parse().expect(#why))
            }
            Some(value) => quote!(#ident: #value),
        }
    }

    /// Returns the statement that checks the range; empty if there is none.
    pub(crate) fn check(&self, all: &[Setting<'_>], name: &str, core: &Path) -> Result<TokenStream> {
        let Some(range) = &self.range else { return Ok(TokenStream::new()) };
        let interval: Interval = range.value().parse().map_err(|why: String| Error::new(range.span(), why))?;
        let Some((number, ty, is_optional)) = number(self.ty) else {
            let valid = "a range is of a whole number, f32, f64, CompressionRatio, or an Option of one";
            return Err(Error::new_spanned(self.ty, valid));
        };
        let at = |end, infinity| bound(end, number, ty, infinity, all).map_err(|why| Error::new(range.span(), why));
        let (low, high) = (at(&interval.low, quote!(NEG_INFINITY))?, at(&interval.high, quote!(INFINITY))?);
        let (what, words) = (format!("{} of {name}", self.key()), interval.words(number == Number::Whole));
        let (ident, compared) = (self.ident, if number == Number::Ratio { quote!(value.get()) } else { quote!(value) });
        let check = quote! {
            let is_valid = ::core::ops::RangeBounds::contains(&(#low, #high), &#compared);
            #core::error::ConfigError::unless(is_valid, #what, #words, value)?;
        };
        Ok(match is_optional {
            true => quote!(if let ::core::option::Option::Some(value) = self.#ident { #check }),
            false => quote!({ let value = self.#ident; #check }),
        })
    }

    /// Returns the setting by its name alone, for help.
    fn placeholder(&self) -> String {
        let is_ratio = matches!(number(self.ty), Some((Number::Ratio, ..)));
        self.ident.to_string().to_uppercase() + if is_ratio { "x" } else { "" }
    }

    /// Returns the value of the setting as help shows it: its default; of a flag the other value.
    fn shown(&self) -> String {
        match &self.default {
            Some(Expr::Lit(ExprLit { lit: Lit::Bool(flag), .. })) => (!flag.value).to_string(),
            Some(Expr::Lit(ExprLit { lit: Lit::Int(number), .. })) => number.base10_digits().to_owned(),
            Some(Expr::Lit(ExprLit { lit: Lit::Float(number), .. })) => {
                number.to_string().trim_end_matches(".0").to_owned()
            }
            Some(Expr::Lit(ExprLit { lit: Lit::Str(text), .. })) => match text.value() {
                text if text.contains([',', '=', '(']) => format!("({text})"),
                text => text,
            },
            Some(_) => self.placeholder(),
            None => match (number(self.ty), self.ty) {
                (Some((Number::Whole | Number::Real, _, false)), _) => "0".to_owned(),
                (None, Type::Path(of)) if of.path.is_ident("bool") => "true".to_owned(),
                _ => self.placeholder(),
            },
        }
    }
}

/// Returns the bound of one end of an interval.
fn bound(
    end: &End,
    number: Number,
    ty: &Type,
    infinity: TokenStream,
    all: &[Setting<'_>],
) -> std::result::Result<TokenStream, String> {
    let (ty, included) = (if number == Number::Ratio { quote!(f64) } else { quote!(#ty) }, end.included);
    let at = match &end.at {
        At::Infinity if included || number == Number::Whole => return Ok(quote!(::core::ops::Bound::<#ty>::Unbounded)),
        At::Infinity => quote!(<#ty>::#infinity),
        At::Number(text) => {
            let is_whole = text.parse::<i128>().is_ok();
            if number == Number::Whole && !is_whole {
                return Err(format!("`{text}` is not a whole number"));
            }
            let text = if number != Number::Whole && is_whole { format!("{text}.0") } else { text.clone() };
            let value: Expr = syn::parse_str(&text).map_err(|error| error.to_string())?;
            quote!(#value)
        }
        At::Field(name) => {
            let other =
                all.iter().find(|other| other.ident == name).ok_or_else(|| format!("no field is named `{name}`"))?;
            let ident = other.ident;
            if number == Number::Ratio { quote!(self.#ident.get()) } else { quote!(self.#ident) }
        }
    };
    let variant = if included { quote!(Included) } else { quote!(Excluded) };
    Ok(quote!(::core::ops::Bound::<#ty>::#variant(#at)))
}

/// Returns the syntax of settings for help: the first by place, the others by name, each with its default.
pub(crate) fn syntax(settings: &[Setting<'_>]) -> String {
    let mut written = settings.iter().filter(|setting| !setting.skipped);
    let syntax = |setting: &Setting<'_>| setting.syntax.as_ref().map(LitStr::value);
    let Some(first) = written.next() else { return String::new() };
    let first = syntax(first).unwrap_or_else(|| first.placeholder());
    let named = written.map(|one| format!("{}={}", one.key(), syntax(one).unwrap_or_else(|| one.shown())));
    let named = named.collect::<Vec<_>>().join(",");
    if named.is_empty() { first } else { format!("{first}[,{named}]") }
}
