//! Defaults of options that their types cannot parse.
//~ the default `65536` is no `u16`
//~ #[flag(default = 65536)]
//~ the default `verbose` is no `bool`; write `true` or `false`
//~ the default `-1` is no `u32`
//~ the default `10 apples` is no duration; write it as `1h30m`, `10s` or `250ms`
//~ mismatched types
//~ unknown property; there are name, short, default
//!~ is not a configuration struct
use std::time::Duration;

#[derive(hive::Config)]
struct Wrong {
    #[flag(default = 65536)]
    port: u16,
}

#[derive(hive::Config)]
struct WrongBool {
    #[flag(default = "verbose")]
    debug: bool,
}

#[derive(hive::Config)]
struct WrongSign {
    #[flag(default = -1)]
    limit: u32,
}

#[derive(hive::Config)]
struct WrongDuration {
    #[flag(default = "10 apples")]
    interval: Duration,
}

#[derive(hive::Config)]
struct WrongExpression {
    #[flag(default = 5 * 60)]
    interval: Duration,
}

/// These are valid.
#[derive(hive::Config)]
struct Right {
    #[flag(default = "0x10")]
    port: u16,
    #[flag(default = "1_000")]
    limit: i32,
    #[flag(default = "1h15m30.5s")]
    interval: Duration,
    #[flag(default = Duration::from_secs(5 * 60))]
    grace: Duration,
    #[flag(default = "t")]
    debug: bool,
}

#[derive(hive::Config)]
struct WrongProperty {
    #[flag(dafault = 3)]
    port: u16,
}

/// Users of the invalid structs cause no errors of their own.
fn cells() -> [hive::Cell; 2] {
    let _ = hive::prelude::invoke(|wrong: hive::Config<Wrong>| drop(wrong.port));
    [hive::config::<Wrong>(), hive::config::<WrongProperty>()]
}

fn main() {
    cells();
}
