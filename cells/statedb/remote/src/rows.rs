//! Responses, row by row.

use std::fmt;
use std::marker::PhantomData;

use api_client::Lines;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::Error;

/// A row at the time of the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row<T> {
    /// The row itself.
    pub object: T,
    /// The revision of its last write.
    pub revision: u64,
}

/// The change of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<T> {
    /// The row as it is now, or as it last was before its deletion.
    pub object: T,
    /// The revision of the write or the delete.
    pub revision: u64,
    /// Whether the row was deleted.
    pub deleted: bool,
}

/// A line of a response.
#[derive(Deserialize)]
struct Line<T> {
    rev: u64,
    obj: Option<T>,
    #[serde(default)]
    deleted: bool,
    #[serde(default)]
    err: String,
}

/// The lines of a response; fused after the end or a lost connection.
struct Answer<T> {
    lines: Option<Lines>,
    marker: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Answer<T> {
    /// Returns the lines, or the agent's error response.
    fn new(mut lines: Lines) -> Result<Self, Error> {
        let status = lines.status;
        if status == 200 {
            return Ok(Answer { lines: Some(lines), marker: PhantomData });
        }
        let lost = |source| Error::Lost { source };
        let line = lines.next_line().map_err(lost)?.unwrap_or_default();
        let message = match serde_json::from_slice::<Line<serde::de::IgnoredAny>>(&line) {
            Ok(Line { err, .. }) if !err.is_empty() => err,
            _ => String::from_utf8_lossy(&line).into_owned(),
        };
        Err(Error::Refused { status, message })
    }

    /// Returns the next line with a row; skips keep-alive lines.
    fn next(&mut self) -> Option<Result<Change<T>, Error>> {
        loop {
            let lines = self.lines.as_mut()?;
            let status = lines.status;
            let line = match lines.next_line() {
                Ok(Some(line)) => line,
                Ok(None) => {
                    self.lines = None;
                    return None;
                }
                Err(source) => {
                    self.lines = None;
                    return Some(Err(Error::Lost { source }));
                }
            };
            match serde_json::from_slice(&line) {
                Ok(Line::<T> { err, .. }) if !err.is_empty() => {
                    return Some(Err(Error::Refused { status, message: err }));
                }
                Ok(Line { rev, obj: Some(object), deleted, .. }) => {
                    return Some(Ok(Change { object, revision: rev, deleted }));
                }
                Ok(_) => {}
                Err(source) => return Some(Err(Error::Row { source })),
            }
        }
    }
}

/// The rows of a response, from [`RemoteTable::list`](crate::RemoteTable::list) and its like.
pub struct Rows<T>(Answer<T>);

impl<T: DeserializeOwned> Rows<T> {
    pub(crate) fn new(lines: Lines) -> Result<Self, Error> {
        Answer::new(lines).map(Rows)
    }
}

impl<T: DeserializeOwned> Iterator for Rows<T> {
    type Item = Result<Row<T>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = |Change { object, revision, .. }| Row { object, revision };
        self.0.next().map(|change| change.map(row))
    }
}

impl<T> fmt::Debug for Rows<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rows")
    }
}

/// The changes of a table, from [`RemoteTable::changes`](crate::RemoteTable::changes).
pub struct Changes<T>(Answer<T>);

impl<T: DeserializeOwned> Changes<T> {
    pub(crate) fn new(lines: Lines) -> Result<Self, Error> {
        Answer::new(lines).map(Changes)
    }
}

impl<T: DeserializeOwned> Iterator for Changes<T> {
    type Item = Result<Change<T>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}

impl<T> fmt::Debug for Changes<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Changes")
    }
}
