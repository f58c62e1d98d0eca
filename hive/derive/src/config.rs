//! `Config`: a struct whose fields are options.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned;
use syn::{Attribute, DeriveInput, Expr, ExprLit, Field, Fields, Lit, LitChar, LitStr, Meta, Result, UnOp};

use crate::params::fields;

/// The arguments of `#[flag(..)]` on a field.
#[derive(Default)]
struct Options {
    name: Option<LitStr>,
    short: Option<LitChar>,
    default: Option<Expr>,
    unit: Option<LitStr>,
    hidden: bool,
    file_only: bool,
    live: bool,
    secret: bool,
    joins: bool,
    group: Option<LitStr>,
    deprecated: Option<LitStr>,
    aliases: Vec<LitStr>,
    parse: Option<LitStr>,
}

pub(crate) fn config(input: DeriveInput) -> Result<TokenStream> {
    let fields = match fields(&input)? {
        Fields::Named(named) => &named.named,
        other => return Err(syn::Error::new_spanned(other, "options need named fields")),
    };
    let of_struct = Struct::of(&input.attrs)?;
    let (mut flags, mut values, mut names) = (vec![], vec![], vec![]);
    for field in fields {
        let (name, flag, value) = option(field, &of_struct)?;
        names.push(name);
        flags.push(flag);
        values.push(value);
    }
    let check = of_struct.check.map(|check| {
        quote_spanned! {check.span()=>
            let check: fn(&Self) -> ::std::result::Result<(), ::std::string::String> = #check;
            check(&config).map_err(|reason| values.invalid(&[#(#names),*], reason))?;
        }
    });
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    let ident = &input.ident;
    Ok(quote! {
        #[automatically_derived]
        impl #generics ::std::default::Default for #ident #arguments #bounds {
            #[allow(unused_variables)]
            fn default() -> Self {
                _hive::config::__defaults(|values| ::std::result::Result::Ok(Self { #(#values),* }))
            }
        }
        #[automatically_derived]
        impl #generics _hive::ConfigSpec for #ident #arguments #bounds {
            fn flags() -> ::std::vec::Vec<_hive::config::Flag> {
                ::std::vec![#(#flags),*]
            }
            #[allow(unused_variables)]
            fn from_values(
                values: &_hive::config::Values<'_>,
            ) -> ::std::result::Result<Self, _hive::ConfigError> {
                let config = Self { #(#values),* };
                #check
                ::std::result::Result::Ok(config)
            }
        }
    })
}

/// Returns an empty implementation for an invalid struct, so that its users cause no further errors.
pub(crate) fn placeholder(input: &DeriveInput) -> TokenStream {
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    let ident = &input.ident;
    quote! {
        #[automatically_derived]
        impl #generics ::std::default::Default for #ident #arguments #bounds {
            fn default() -> Self {
                ::std::unreachable!()
            }
        }
        #[automatically_derived]
        impl #generics _hive::ConfigSpec for #ident #arguments #bounds {
            fn flags() -> ::std::vec::Vec<_hive::config::Flag> {
                ::std::unreachable!()
            }
            fn from_values(_: &_hive::config::Values<'_>) -> ::std::result::Result<Self, _hive::ConfigError> {
                ::std::unreachable!()
            }
        }
    }
}

/// The arguments of `#[config(..)]` on a struct.
#[derive(Default)]
struct Struct {
    check: Option<Expr>,
    group: Option<LitStr>,
}

impl Struct {
    fn of(attrs: &[Attribute]) -> Result<Self> {
        let mut parsed = Struct::default();
        for attr in attrs.iter().filter(|attr| attr.path().is_ident("config")) {
            attr.parse_nested_meta(|meta| {
                if meta.path.is_ident("check") {
                    parsed.check = Some(meta.value()?.parse()?);
                } else if meta.path.is_ident("group") {
                    parsed.group = Some(meta.value()?.parse()?);
                } else {
                    return Err(meta.error("unknown property; there are check, group"));
                }
                Ok(())
            })?;
        }
        Ok(parsed)
    }
}

fn some(text: Option<&LitStr>) -> TokenStream {
    match text {
        Some(text) => quote!(::std::option::Option::Some(#text)),
        None => quote!(::std::option::Option::None),
    }
}

/// Returns the name of an option, its declaration, and the initializer of its field.
fn option(field: &Field, of_struct: &Struct) -> Result<(LitStr, TokenStream, TokenStream)> {
    let Some(ident) = &field.ident else {
        return Err(syn::Error::new_spanned(field, "options need named fields"));
    };
    let options = Options::of(&field.attrs)?;
    let name = match &options.name {
        Some(name) => name.clone(),
        None => LitStr::new(&ident.to_string().trim_start_matches("r#").replace('_', "-"), ident.span()),
    };
    check_name(&name)?;
    let ty = &field.ty;
    let (kind, expected, check, value) = match &options.parse {
        Some(what) => (
            quote!(_hive::config::Kind::Parsed(#what)),
            quote!(::std::option::Option::None),
            quote_spanned!(ty.span()=> |value| value.parse::<#ty>().map(|_| ())),
            quote_spanned!(ty.span()=> values.parse::<#ty>(#name)?),
        ),
        None => (
            quote_spanned!(ty.span()=> <#ty as _hive::config::FlagValue>::KIND),
            quote_spanned!(ty.span()=> <#ty as _hive::config::FlagValue>::EXPECTED),
            quote_spanned!(ty.span()=> |value| <#ty as _hive::config::FlagValue>::take(value).map(|_| ())),
            quote_spanned!(ty.span()=> values.get::<#ty>(#name)?),
        ),
    };
    let default = default(field, &options)?;
    let help = help(&field.attrs);
    let (unit, deprecated) = (some(options.unit.as_ref()), some(options.deprecated.as_ref()));
    let short = match &options.short {
        Some(letter) => quote!(::std::option::Option::Some(#letter)),
        None => quote!(::std::option::Option::None),
    };
    let group = some(options.group.as_ref().or(of_struct.group.as_ref()));
    let (hidden, file_only, aliases) = (options.hidden, options.file_only, &options.aliases);
    let (live, secret, joins) = (options.live, options.secret, options.joins);
    let flag = quote! {
        {
            let mut flag = _hive::config::Flag::new(#name, #kind, #check);
            flag.short = #short;
            flag.expected = #expected;
            flag.default = #default;
            flag.help = #help;
            flag.unit = #unit;
            flag.hidden = #hidden;
            flag.file_only = #file_only;
            flag.aliases = &[#(#aliases),*];
            flag.group = #group;
            flag.deprecated = #deprecated;
            flag.live = #live;
            flag.secret = #secret;
            flag.joins = #joins;
            flag
        }
    };
    Ok((name, flag, quote!(#ident: #value)))
}

impl Options {
    fn of(attrs: &[Attribute]) -> Result<Self> {
        let mut options = Options::default();
        for attr in attrs.iter().filter(|attr| attr.path().is_ident("flag")) {
            attr.parse_nested_meta(|meta| options.add(meta))?;
        }
        Ok(options)
    }

    fn add(&mut self, meta: ParseNestedMeta<'_>) -> Result<()> {
        let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
        match name.as_str() {
            "name" => self.name = Some(meta.value()?.parse()?),
            "short" => self.short = Some(short(meta.value()?.parse()?)?),
            "default" => self.default = Some(meta.value()?.parse()?),
            "unit" => self.unit = Some(meta.value()?.parse()?),
            "hidden" => self.hidden = true,
            "file_only" => self.file_only = true,
            "live" => self.live = true,
            "secret" => self.secret = true,
            "joins" => self.joins = true,
            "group" => self.group = Some(meta.value()?.parse()?),
            "deprecated" => self.deprecated = Some(meta.value()?.parse()?),
            "alias" => self.aliases.push(meta.value()?.parse()?),
            "parse" => self.parse = Some(meta.value()?.parse()?),
            _ => {
                let known = "name, short, default, unit, group, hidden, file_only, live, secret, joins, deprecated, alias, parse";
                return Err(meta.error(format!("unknown property; there are {known}")));
            }
        }
        Ok(())
    }
}

fn short(letter: LitChar) -> Result<LitChar> {
    if letter.value().is_ascii_alphanumeric() && letter.value() != 'h' {
        return Ok(letter);
    }
    Err(syn::Error::new_spanned(
        letter,
        "a short name is a letter or digit other than `h`, which asks for help",
    ))
}

fn check_name(name: &LitStr) -> Result<()> {
    let text = name.value();
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.' || b == b'_';
    if !text.is_empty() && !text.starts_with('-') && text.bytes().all(allowed) {
        return Ok(());
    }
    Err(syn::Error::new_spanned(name, "option names are lower case: a-z, 0-9, `-`, `.`, `_`"))
}

/// Returns the default as the text that would be written in a file: literals as they are, other expressions rendered.
fn default(field: &Field, options: &Options) -> Result<TokenStream> {
    let ty = &field.ty;
    let text = |text: String| quote!(::std::string::String::from(#text));
    match &options.default {
        Some(expr) => match literal(expr) {
            Some(raw) => {
                if options.parse.is_none() {
                    crate::literal::check(ty, expr, &raw)?;
                }
                Ok(text(raw))
            }
            None if options.parse.is_some() => {
                Err(syn::Error::new_spanned(expr, "with `parse` the default must be a literal"))
            }
            None => Ok(quote_spanned!(expr.span()=> {
                let value: #ty = #expr;
                <#ty as _hive::config::FlagValue>::render(&value)
            })),
        },
        None if options.parse.is_some() => {
            Err(syn::Error::new_spanned(field, "with `parse` a default is required"))
        }
        None => Ok(quote_spanned!(ty.span()=>
            ::std::string::String::from(<#ty as _hive::config::FlagValue>::ZERO))),
    }
}

fn literal(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Lit(ExprLit { lit, .. }) => match lit {
            Lit::Str(text) => Some(text.value()),
            Lit::Bool(b) => Some(b.value.to_string()),
            Lit::Int(number) => Some(number.base10_digits().to_owned()),
            Lit::Float(number) => Some(number.base10_digits().to_owned()),
            _ => None,
        },
        Expr::Unary(unary) if matches!(unary.op, UnOp::Neg(_)) => Some(format!("-{}", literal(&unary.expr)?)),
        _ => None,
    }
}

/// Returns the doc comment in one line.
fn help(attrs: &[Attribute]) -> String {
    let lines = attrs.iter().filter_map(|attr| match &attr.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value().trim().to_owned()),
            _ => None,
        },
        _ => None,
    });
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}
