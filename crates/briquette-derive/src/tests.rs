use super::*;

fn error(input: DeriveInput) -> String {
    expand(&input).expect_err("refused").to_string()
}

fn code(input: DeriveInput) -> String {
    expand(&input).expect("accepted").to_string().replace(' ', "")
}

#[test]
fn a_declaration_gives_defaults_ranges_and_help() {
    let code = code(syn::parse_quote! {
        #[described(name = "one", help = "text", places = 2, representatives("one", "one:2"), check = One::together)]
        struct One {
            first: Option<u64>,
            #[setting(default = 0.50, range = "(0, 1]")]
            share_of: f32,
            #[setting(default = "topk:8x", syntax = "NAME")]
            other: CompressorConfig,
            #[setting(default = "20x", range = "[low, inf)")]
            high: CompressionRatio,
            low: CompressionRatio,
            #[setting(range = "[1, inf)")]
            period: Option<u64>,
            #[setting(default = true)]
            on: bool,
            #[serde(skip)]
            scratch: Vec<f32>,
        }
    });
    for part in [
        "NAME:&'staticstr=\"one\"",
        "PLACES:usize=2;",
        "&[\"one\",\"one:2\"]",
        "\"FIRST[,share-of=0.50,other=NAME,high=20x,low=LOWx,period=PERIOD,on=false]\"",
        "first:::core::default::Default::default(),share_of:0.50,other:\"topk:8x\".parse().expect(\"thedefaultofother",
        "{letvalue=self.share_of;",
        "(&(::core::ops::Bound::<f32>::Excluded(0.0),::core::ops::Bound::<f32>::Included(1.0)),&value)",
        "(is_valid,\"share-ofofone\",\"in(0,1]\",value)?",
        "(&(::core::ops::Bound::<f64>::Included(self.low.get()),::core::ops::Bound::<f64>::Excluded(<f64>::INFINITY)),\
         &value.get())",
        "ifletSome(value)=self.period",
        "(&(::core::ops::Bound::<u64>::Included(1),::core::ops::Bound::<u64>::Unbounded),&value)",
        "One::together(self)?;",
    ] {
        assert!(code.replace("::core::option::Option::", "").contains(part), "{part} is not in {code}");
    }
}

#[test]
fn a_unit_struct_has_no_settings_and_no_check() {
    let code = code(syn::parse_quote!(
        #[described(name = "none", help = "text")]
        struct Nothing;
    ));
    assert!(code.contains("SETTINGS:&'staticstr=\"\"") && code.contains("Nothing{}"), "{code}");
    assert!(!code.contains("fncheck") && !code.contains("PLACES"), "{code}");
}

#[test]
fn mistakes_are_named() {
    let with = |attribute: TokenStream, field: TokenStream| {
        error(syn::parse_quote!(#[described(#attribute)] struct One { #field }))
    };
    let named = || quote!(name = "one", help = "text");
    for (error, part) in [
        (with(quote!(help = "text"), quote!()), "an algorithm has a name"),
        (with(quote!(name = "one"), quote!()), "a line of help"),
        (with(quote!(name = "One", help = "text"), quote!()), "lowercase words"),
        (with(quote!(name = "one", helps = "text"), quote!()), "described by name, help"),
        (with(quote!(name = "one", help = "text", representatives("two:1")), quote!()), "is a text of one"),
        (with(named(), quote!(#[setting(ranges = "[0, 1]")] a: f32)), "default, range and syntax"),
        (with(named(), quote!(#[setting(range = "[0, 1")] a: f32)), "`[0, 1` is not an interval"),
        (with(named(), quote!(#[setting(range = "[0, 0.5]")] a: u8)), "`0.5` is not a whole number"),
        (with(named(), quote!(#[setting(range = "[0, b]")] a: u8)), "no field is named `b`"),
        (with(named(), quote!(#[setting(range = "[0, 1]")] a: bool)), "a range is of a whole number"),
        (
            error(syn::parse_quote!(
                #[described(name = "one", help = "text")]
                enum One {}
            )),
            "are a struct",
        ),
        (
            error(syn::parse_quote!(
                #[described(name = "one", help = "text")]
                struct One(u8);
            )),
            "have names",
        ),
        (
            error(syn::parse_quote!(
                #[described(name = "one", help = "text")]
                struct One<T> {
                    a: T,
                }
            )),
            "no parameters",
        ),
    ] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
}
