//! A report of health as a row of the table `health`.

use std::time::SystemTime;

use hive::{HealthId, Level, Status};
use serde::{Deserialize, Serialize, Serializer};
use statedb::{FromValue, Index, IndexDef, Query, TableDisplay, TableSpec};

/// The latest report of a reporter, with Cilium's JSON and columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    path: String,
    level: String,
    status: Status,
}

/// Reports by level: `OK`, `Degraded`, `Stopped`.
pub const LEVEL: Index<Report, str> = Index::new("level", |report, keys| keys.add(report.level.as_str()));

impl Report {
    /// Selects the reporter with a dotted path.
    pub fn by_identifier(path: &str) -> Query<Report> {
        Query::primary(path)
    }

    /// Selects the reports of a level.
    pub fn by_level(level: Level) -> Query<Report> {
        LEVEL.query(&level.to_string())
    }

    /// Returns the report itself.
    pub fn status(&self) -> &Status {
        &self.status
    }

    fn component(&self) -> &[std::sync::Arc<str>] {
        &self.status.id[self.status.module_segments.min(self.status.id.len())..]
    }
}

impl From<&Status> for Report {
    fn from(status: &Status) -> Self {
        Self { path: status.path(), level: status.level.to_string(), status: status.clone() }
    }
}

impl TableSpec for Report {
    const NAME: &'static str = "health";
    const PRIMARY: &'static str = "identifier";
    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        &self.path
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![LEVEL.def()]
    }
}

impl TableDisplay for Report {
    const FROM_VALUE: Option<FromValue<Self>> = Some(|value| Given::deserialize(value).map(Report::from));

    fn columns() -> &'static [&'static str] {
        &["Module", "Component", "Level", "Message", "Error", "LastOK", "UpdatedAt", "Count"]
    }

    fn row(&self) -> Vec<String> {
        let status = &self.status;
        let time = |time| api_models::rfc3339(time);
        vec![
            status.module(),
            self.component().join("."),
            self.level.clone(),
            status.message.clone(),
            status.error.clone(),
            status.last_ok.map_or_else(|| ZERO_TIME.to_owned(), time),
            Some(status.updated).filter(is_set).map_or_else(|| ZERO_TIME.to_owned(), time),
            status.count.to_string(),
        ]
    }
}

/// A row in the form in which scripts and users insert it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Given {
    id: GivenId,
    level: String,
    message: String,
    error: String,
    lastok: String,
    updated: String,
    stopped: String,
    #[serde(rename = "final")]
    last_word: String,
    count: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GivenId {
    module: Vec<String>,
    component: Vec<String>,
}

impl From<Given> for Report {
    fn from(given: Given) -> Self {
        let level = match given.level.as_str() {
            "Degraded" => Level::Degraded,
            "Stopped" => Level::Stopped,
            _ => Level::Ok,
        };
        let segments =
            given.id.module.iter().chain(&given.id.component).map(|segment| segment.as_str().into());
        let updated = api_models::from_rfc3339(&given.updated).unwrap_or(SystemTime::UNIX_EPOCH);
        let mut status = Status::new(segments.collect(), given.id.module.len(), level, updated);
        status.message = given.message;
        status.last_word = given.last_word;
        status.error = given.error;
        status.count = given.count;
        status.last_ok = api_models::from_rfc3339(&given.lastok);
        status.stopped = api_models::from_rfc3339(&given.stopped);
        Report::from(&status)
    }
}

/// Whether the time is set: a row written by hand may have none.
fn is_set(updated: &SystemTime) -> bool {
    *updated != SystemTime::UNIX_EPOCH
}

/// Go's text of the zero time.
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

/// Formats a time as Go's JSON encoder does: UTC, fraction without trailing zeros.
fn rfc3339_nano(time: Option<SystemTime>) -> String {
    let Some(time) = time else { return ZERO_TIME.to_owned() };
    api_models::rfc3339_nanos(time)
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Id<'a> {
            module: &'a HealthId,
            component: &'a [std::sync::Arc<str>],
        }
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Whole<'a> {
            #[serde(rename = "ID")]
            id: Id<'a>,
            level: &'a str,
            message: &'a str,
            error: &'a str,
            #[serde(rename = "LastOK")]
            last_ok: String,
            updated: String,
            stopped: String,
            #[serde(rename = "Final")]
            last_word: &'a str,
            count: u64,
        }
        let status = &self.status;
        let module = status.id[..status.id.len() - self.component().len()].to_vec();
        Whole {
            id: Id { module: &module, component: self.component() },
            level: &self.level,
            message: &status.message,
            error: &status.error,
            last_ok: rfc3339_nano(status.last_ok),
            updated: rfc3339_nano(Some(status.updated).filter(is_set)),
            stopped: rfc3339_nano(status.stopped),
            last_word: &status.last_word,
            count: status.count,
        }
        .serialize(serializer)
    }
}
