//! Derive macro of `Described`: the settings of an algorithm from one declaration. `briquette_core::config` exports it with the trait,
//! whose documentation shows its use.

mod interval;
mod setting;

use std::{env, fs, path::PathBuf};

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::meta::ParseNestedMeta;
use syn::punctuated::Punctuated;
use syn::{Data, DeriveInput, Error, Fields, LitInt, LitStr, Path, Result, Token, parenthesized};

use setting::Setting;

/// Implements `Described` and `Default` for a struct of settings, or a unit struct.
///
/// `#[described(...)]` of the struct has
/// - `name = "easgd"`, with which the text begins, and `help = "..."`, the description in one line;
/// - `places = 2`: the number of settings that may stand by place; 1 if absent;
/// - `representatives("easgd:3", ...)`: the texts on which the laws test it; the default if absent;
/// - `combinations("...", ...)`: configurations in which the laws test it besides the usual ones;
/// - `check = path`: a function of `&Self` that checks settings together, called if each is in its range;
/// - `crate = path`: the path of `briquette_core`, where it has another name than in the manifest.
///
/// `#[setting(...)]` of a field has
/// - `default = 0.9`; a string is parsed as a text: `default = "topk:20x"`. The default of the type if absent;
/// - `range = "[0, 1)"`, of a number or of an optional one: `(` and `)` exclude the end, `inf` is an end, and so is another field's name.
///   A value that is not a number is in no range;
/// - `syntax = "max|l2"`: its value as help shows it, if neither its default nor its name says enough.
#[proc_macro_derive(Described, attributes(described, setting))]
pub fn described(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// The attribute of the struct.
#[derive(Default)]
struct Declaration {
    name: Option<LitStr>,
    help: Option<LitStr>,
    places: Option<LitInt>,
    representatives: Vec<LitStr>,
    combinations: Vec<LitStr>,
    check: Option<Path>,
    core: Option<Path>,
}

impl Declaration {
    fn of(input: &DeriveInput) -> Result<Self> {
        let mut own = Declaration::default();
        for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("described")) {
            attribute.parse_nested_meta(|meta| own.take(&meta))?;
        }
        Ok(own)
    }

    fn take(&mut self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        let key = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
        match key.as_str() {
            "name" => self.name = Some(meta.value()?.parse()?),
            "help" => self.help = Some(meta.value()?.parse()?),
            "places" => self.places = Some(meta.value()?.parse()?),
            "representatives" => self.representatives = texts(meta)?,
            "combinations" => self.combinations = texts(meta)?,
            "check" => self.check = Some(meta.value()?.parse()?),
            "crate" => self.core = Some(meta.value()?.parse()?),
            _ => {
                let valid = "name, help, places, representatives, combinations, check and crate";
                return Err(meta.error(format!("an algorithm is described by {valid}")));
            }
        }
        Ok(())
    }
}

/// Reads the texts in parentheses after a key.
fn texts(meta: &ParseNestedMeta<'_>) -> Result<Vec<LitStr>> {
    let content;
    parenthesized!(content in meta.input);
    Ok(Punctuated::<LitStr, Token![,]>::parse_terminated(&content)?.into_iter().collect())
}

/// Returns the path of core in the crate that is compiled: that of `briquette`, if its manifest names `briquette-core` nowhere.
fn core() -> Path {
    let manifest = env::var_os("CARGO_MANIFEST_DIR").map(|folder| PathBuf::from(folder).join("Cargo.toml"));
    match manifest.and_then(|manifest| fs::read_to_string(manifest).ok()) {
        Some(text) if !text.contains("briquette-core") => syn::parse_quote!(::briquette::core),
        _ => syn::parse_quote!(::briquette_core),
    }
}

fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let wrong = |why: &str| Error::new_spanned(&input.ident, why);
    let Declaration { name, help, places, representatives, combinations, check, core: path } = Declaration::of(input)?;
    let name = name.ok_or_else(|| wrong("an algorithm has a name: #[described(name = \"...\", help = \"...\")]"))?;
    let help =
        help.ok_or_else(|| wrong("an algorithm has a line of help: #[described(name = \"...\", help = \"...\")]"))?;
    let well_formed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.value().is_empty() || !name.value().chars().all(well_formed) {
        return Err(Error::new(name.span(), "a name is lowercase words joined by hyphens"));
    }
    for text in &representatives {
        if text.value().split(':').next() != Some(&name.value()) {
            return Err(Error::new(text.span(), format!("a representative is a text of {}", name.value())));
        }
    }
    if !input.generics.params.is_empty() {
        return Err(Error::new_spanned(&input.generics, "settings have no parameters of type or lifetime"));
    }
    let settings = match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(fields) => fields.named.iter().map(Setting::of).collect::<Result<Vec<_>>>()?,
            Fields::Unit => Vec::new(),
            Fields::Unnamed(_) => return Err(wrong("settings have names: use a struct with named fields")),
        },
        _ => return Err(wrong("settings are a struct with named fields, or a unit struct")),
    };

    let core = path.unwrap_or_else(core);
    let defaults = settings.iter().map(|setting| setting.default(&name.value()));
    let ranges: Vec<_> =
        settings.iter().map(|one| one.check(&settings, &name.value(), &core)).collect::<Result<_>>()?;
    let together = check.map(|check| quote_spanned!(syn::spanned::Spanned::span(&check)=> #check(self)?;));
    let check = (ranges.iter().any(|range| !range.is_empty()) || together.is_some()).then(|| {
        quote! {
            fn check(&self) -> ::core::result::Result<(), #core::error::ConfigError> {
                #(#ranges)*
                #together
                ::core::result::Result::Ok(())
            }
        }
    });
    let ident = &input.ident;
    let syntax = setting::syntax(&settings);
    let places = places.map(|places| quote!(const PLACES: usize = #places;));
    Ok(quote! {
        #[automatically_derived]
        impl ::core::default::Default for #ident {
            fn default() -> Self {
                #ident { #(#defaults),* }
            }
        }

        #[automatically_derived]
        impl #core::config::Described for #ident {
            const NAME: &'static str = #name;
            const SETTINGS: &'static str = #syntax;
            const HELP: &'static str = #help;
            const REPRESENTATIVES: &'static [&'static str] = &[#(#representatives),*];
            const COMBINATIONS: &'static [&'static str] = &[#(#combinations),*];
            #places
            #check
        }
    })
}

#[cfg(test)]
mod tests;
