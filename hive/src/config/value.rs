//! Rust types that fields of configuration structs may have.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use figment::value::Value;

use super::error::ConfigError;
use super::format_duration;
use super::kind::Kind;
use super::settings::Settings;

/// A type of configuration fields. `#[derive(FlagValue)]` implements it for enums; other types are read by one of these
/// implementations and checked:
///
/// ```
/// use hive::config::{FlagValue, Kind, Parsed};
///
/// struct Percent(u8);
///
/// impl FlagValue for Percent {
///     const KIND: Kind = u8::KIND;
///     const ZERO: &'static str = u8::ZERO;
///     const EXPECTED: Option<&'static str> = Some("a share from 0 to 100");
///
///     fn take(value: &Parsed<'_>) -> Result<Self, String> {
///         u8::take(value).ok().filter(|share| *share <= 100).map(Percent).ok_or_else(String::new)
///     }
///
///     fn render(&self) -> String {
///         self.0.render()
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an option",
    note = "an enum can with `#[derive(hive::config::FlagValue)]`, a type that reads itself from text (`FromStr`) with `#[flag(parse = \"what it looks like\")]`"
)]
pub trait FlagValue: Sized {
    /// The syntax of its values.
    const KIND: Kind;
    /// Its default if the field declares none.
    const ZERO: &'static str;
    /// A description of valid values, if they are fewer than those of its kind.
    const EXPECTED: Option<&'static str> = None;
    /// Converts a value that was parsed as its kind. The error is empty or adds detail to the description of valid
    /// values.
    fn take(value: &Parsed<'_>) -> Result<Self, String>;
    /// Writes it in a form that parses to the same value.
    fn render(&self) -> String;
}

/// A value that was read as its option's kind.
pub struct Parsed<'a>(pub(crate) &'a Value);

impl<'a> Parsed<'a> {
    /// Returns the text of a value of kind `Text` or `Parsed`.
    pub fn text(&self) -> &'a str {
        self.0.as_str().unwrap_or_default()
    }

    /// Reads the text as another type.
    pub fn parse<T: FromStr<Err: ToString>>(&self) -> Result<T, String> {
        self.text().parse().map_err(|e: T::Err| e.to_string())
    }

    fn items(&self) -> impl Iterator<Item = &'a str> {
        self.0.as_array().unwrap_or_default().iter().filter_map(Value::as_str)
    }
}

impl FlagValue for bool {
    const KIND: Kind = Kind::Bool;
    const ZERO: &'static str = "false";

    fn take(value: &Parsed<'_>) -> Result<Self, String> {
        value.0.to_bool().ok_or_else(String::new)
    }

    fn render(&self) -> String {
        self.to_string()
    }
}

macro_rules! numbers {
    ($($t:ty => $kind:expr, $get:ident;)*) => {$(
        impl FlagValue for $t {
            const KIND: Kind = $kind;
            const ZERO: &'static str = "0";

            fn take(value: &Parsed<'_>) -> Result<Self, String> {
                let number = value.0.to_num().and_then(|number| number.$get());
                number.and_then(|n| <$t>::try_from(n).ok()).ok_or_else(String::new)
            }

            fn render(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
numbers! {
    i32 => Kind::Int(32), to_i128;
    i64 => Kind::Int(64), to_i128;
    isize => Kind::Int(isize::BITS), to_i128;
    u8 => Kind::Uint(8), to_u128;
    u16 => Kind::Uint(16), to_u128;
    u32 => Kind::Uint(32), to_u128;
    u64 => Kind::Uint(64), to_u128;
    usize => Kind::Uint(usize::BITS), to_u128;
    f64 => Kind::Float, to_f64;
}

impl FlagValue for Duration {
    const KIND: Kind = Kind::Duration;
    const ZERO: &'static str = "0s";

    fn take(value: &Parsed<'_>) -> Result<Self, String> {
        let nanos = value.0.to_num().and_then(|number| number.to_u128());
        nanos.and_then(|n| u64::try_from(n).ok()).map(Duration::from_nanos).ok_or_else(String::new)
    }

    fn render(&self) -> String {
        format_duration(*self)
    }
}

impl FlagValue for String {
    const KIND: Kind = Kind::Text;
    const ZERO: &'static str = "";

    fn take(value: &Parsed<'_>) -> Result<Self, String> {
        Ok(value.text().to_owned())
    }

    fn render(&self) -> String {
        self.clone()
    }
}

impl FlagValue for Vec<String> {
    const KIND: Kind = Kind::Strings;
    const ZERO: &'static str = "";

    fn take(value: &Parsed<'_>) -> Result<Self, String> {
        Ok(value.items().map(str::to_owned).collect())
    }

    fn render(&self) -> String {
        Kind::Strings.render(&Value::from(self.clone()))
    }
}

impl FlagValue for BTreeMap<String, String> {
    const KIND: Kind = Kind::Map;
    const ZERO: &'static str = "";

    fn take(value: &Parsed<'_>) -> Result<Self, String> {
        let pairs = value.items().filter_map(|pair| pair.split_once('='));
        Ok(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    fn render(&self) -> String {
        self.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
    }
}

macro_rules! texts {
    ($($t:ty => $what:literal, $zero:literal;)*) => {$(
        impl FlagValue for $t {
            const KIND: Kind = Kind::Parsed($what);
            const ZERO: &'static str = $zero;

            fn take(value: &Parsed<'_>) -> Result<Self, String> {
                value.parse()
            }

            fn render(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
texts! {
    IpAddr => "an IP address", "0.0.0.0";
    Ipv4Addr => "an IPv4 address", "0.0.0.0";
    Ipv6Addr => "an IPv6 address", "::";
    SocketAddr => "an address with a port", "0.0.0.0:0";
}
#[cfg(feature = "ipnetwork")]
texts! {
    ipnetwork::IpNetwork => "a CIDR", "0.0.0.0/0";
    ipnetwork::Ipv4Network => "an IPv4 CIDR", "0.0.0.0/0";
    ipnetwork::Ipv6Network => "an IPv6 CIDR", "::/0";
}

impl FlagValue for PathBuf {
    const KIND: Kind = Kind::Text;
    const ZERO: &'static str = "";

    fn take(value: &Parsed<'_>) -> Result<Self, String> {
        Ok(value.text().into())
    }

    fn render(&self) -> String {
        self.display().to_string()
    }
}

/// An empty text is `None`; meant for types that are parsed from text.
impl<T: FlagValue> FlagValue for Option<T> {
    const KIND: Kind = T::KIND;
    const ZERO: &'static str = "";
    const EXPECTED: Option<&'static str> = T::EXPECTED;

    fn take(value: &Parsed<'_>) -> Result<Self, String> {
        match value.0.as_str() {
            Some("") => Ok(None),
            _ => T::take(value).map(Some),
        }
    }

    fn render(&self) -> String {
        self.as_ref().map(T::render).unwrap_or_default()
    }
}

/// The values in force, as a configuration struct takes them.
pub struct Values<'a> {
    pub(crate) settings: &'a Settings,
}

impl Values<'_> {
    /// Returns the value of an option.
    pub fn get<T: FlagValue>(&self, key: &str) -> Result<T, ConfigError> {
        self.take(key, T::take)
    }

    /// Returns the value of an option whose type is parsed from text.
    pub fn parse<T: FromStr<Err: ToString>>(&self, key: &str) -> Result<T, ConfigError> {
        self.take(key, |value| value.parse())
    }

    /// Returns the error of a struct whose options are invalid in combination; `keys` are all of them.
    pub fn invalid(&self, keys: &[&str], reason: impl ToString) -> ConfigError {
        let settings = keys.iter().filter_map(|key| self.settings.get(key));
        let set = settings.filter(|setting| !setting.is_default());
        let options = set.map(|s| format!("{}={} ({})", s.key, s.value, s.source)).collect();
        ConfigError::Invalid { reason: reason.to_string(), options }
    }

    fn take<T>(
        &self,
        key: &str,
        take: impl FnOnce(&Parsed<'_>) -> Result<T, String>,
    ) -> Result<T, ConfigError> {
        let undeclared = || ConfigError::Undeclared { key: key.to_owned() };
        let setting = self.settings.get(key).ok_or_else(undeclared)?;
        take(&Parsed(&setting.parsed)).map_err(|detail| setting.bad_value(detail))
    }
}
