//! Derive macros of the hive: Params, Outputs, Object, Config, FlagValue, ShakuDeps.
//!
//! They are re-exported by the `hive` crate, whose documentation shows their use.

mod config;
mod flag_value;
mod literal;
mod object;
mod params;
mod shaku;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

fn expand(input: TokenStream, with: fn(DeriveInput) -> syn::Result<proc_macro2::TokenStream>) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    with(input).unwrap_or_else(|error| error.into_compile_error()).into()
}

/// A struct whose fields are constructor parameters, taken together as one parameter.
#[proc_macro_derive(Params)]
pub fn params(input: TokenStream) -> TokenStream {
    expand(input, params::params)
}

/// A struct whose fields are constructor results, returned together as one result.
#[proc_macro_derive(Outputs)]
pub fn outputs(input: TokenStream) -> TokenStream {
    expand(input, params::outputs)
}

/// A type that a constructor may return bare: `fn() -> Foo` provides `Arc<Foo>`.
#[proc_macro_derive(Object)]
pub fn object(input: TokenStream) -> TokenStream {
    expand(input, object::object)
}

/// A struct whose fields are options. The doc comment of a field is its help text.
///
/// `#[flag(..)]` takes, all optional:
/// - `name = "x"`: the option's name; otherwise the field's with dashes for underscores
/// - `short = 'x'`: a letter that stands for it on the command line
/// - `default = v`: a literal, written as the option would be (`"30s"`, `true`, `"a,b"`), or an expression of the
///   field's type; otherwise the type's zero
/// - `unit = "bytes"`: shown in the help text
/// - `group = "Network"`: the heading in the help text
/// - `hidden`: not shown in the help text
/// - `live`: a change takes effect while the program runs, for those who take a `ConfigWatch` of the struct; a change
///   of
///   any other option takes effect at the next start
/// - `joins`: several on the command line are one, joined by commas, as lists and maps are
/// - `secret`: the value is shown nowhere
/// - `deprecated = "set x instead"`: the log says so when it is set
/// - `file_only`: read from files and folders, no flag and no environment variable
/// - `alias = "old"`, repeatable: an old name that files and folders may use
/// - `parse = "what it looks like"`: the field's type reads itself from text by `FromStr`; a literal default is
///   required
///
/// `#[config(..)]` on the struct takes:
/// - `check = path`: a `fn(&Self) -> Result<(), String>` that tells what is wrong with the options together
/// - `group = "Network"`: the heading of all its options
///
/// The struct gets [`Default`] as well: each option at its default, without `check`. It panics if a default is not of
/// its option's type, which a hive reports when it is built.
#[proc_macro_derive(Config, attributes(flag, config))]
pub fn config(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let stub = config::stub(&input);
    config::config(input)
        .unwrap_or_else(|error| [error.into_compile_error(), stub].into_iter().collect())
        .into()
}

/// An enum as the type of an option. Each variant is one of the option's values, written as its name in lower case or
/// as `#[flag(name = "..")]` has it; other texts are refused by a list of these. The first is the default of fields
/// without one.
#[proc_macro_derive(FlagValue, attributes(flag))]
pub fn flag_value(input: TokenStream) -> TokenStream {
    expand(input, flag_value::flag_value)
}

/// The dependencies of a shaku component, for `hive_shaku::Shaku`: read from the same `#[shaku(inject)]` attributes
/// that shaku's own derive reads. `Arc<I>`, `Vec<Arc<I>>` and `HashMap<K, Arc<I>>` are known.
#[proc_macro_derive(ShakuDeps, attributes(shaku))]
pub fn shaku_deps(input: TokenStream) -> TokenStream {
    expand(input, shaku::shaku_deps)
}
