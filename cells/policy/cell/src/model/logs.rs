//! The table `policy-logs`: the texts of rules that verdict events name by a number.

use std::sync::Arc;

use serde::Serialize;
use statedb::{Query, TableDisplay, TableSpec};

/// The texts of the rules behind a map entry, each once.
pub type LogTexts = Arc<[Arc<str>]>;

/// A row of `policy-logs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct PolicyLog {
    /// The number: `cookie` of map entries and of verdict events.
    pub cookie: u32,
    /// The texts.
    pub texts: LogTexts,
}

impl PolicyLog {
    /// Queries the texts of a cookie.
    pub fn by_cookie(cookie: u32) -> Query<PolicyLog> {
        Query::primary(cookie)
    }
}

impl TableSpec for PolicyLog {
    const NAME: &'static str = "policy-logs";
    const PRIMARY: &'static str = "cookie";
    type Key<'a> = u32;

    fn key(&self) -> u32 {
        self.cookie
    }
}

impl TableDisplay for PolicyLog {
    fn columns() -> &'static [&'static str] {
        &["Cookie", "Texts"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.cookie.to_string(), self.texts.join(", ")]
    }
}
