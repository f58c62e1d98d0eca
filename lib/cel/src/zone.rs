//! Time zones: offsets from UTC, and those of the machine by name.

use std::io::Read as _;
use std::path::{Component, Path};

use jiff::tz::{Offset, TimeZone};

/// Folders of zones, the first one with the zone counts.
const FOLDERS: [&str; 3] = ["/usr/share/zoneinfo", "/usr/lib/zoneinfo", "/etc/zoneinfo"];

/// The maximum size of a zone's file in bytes; the largest have about 4 kB.
const MAX_SIZE: u64 = 64 << 10;

/// A zone that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ZoneError {
    #[error("{0} is no offset such as +02:00, from -23:59 to +23:59")]
    Offset(String),
    #[error("there is no time zone {0} in {folder}", folder = FOLDERS[0])]
    Unknown(String),
}

/// Returns a zone by its name (`Europe/Berlin`, `UTC`, or nothing for UTC) or offset from UTC.
pub(crate) fn find(zone: &str) -> Result<TimeZone, ZoneError> {
    if zone.contains(':') {
        return offset(zone).ok_or_else(|| ZoneError::Offset(zone.to_owned()));
    }
    if matches!(zone, "" | "UTC") {
        return Ok(TimeZone::UTC);
    }
    let found = FOLDERS.iter().find_map(|folder| named(Path::new(folder), zone));
    found.ok_or_else(|| ZoneError::Unknown(zone.to_owned()))
}

/// Reads a zone of a folder. Names lead to no other one.
fn named(folder: &Path, zone: &str) -> Option<TimeZone> {
    let is_name = Path::new(zone).components().all(|part| matches!(part, Component::Normal(_)));
    let data = is_name.then(|| read(folder, zone)).flatten()?;
    TimeZone::tzif(zone, &data).ok()
}

fn read(folder: &Path, zone: &str) -> Option<Vec<u8>> {
    let path = folder.join(zone);
    if !path.metadata().ok()?.is_file() {
        return None;
    }
    let mut data = Vec::new();
    std::fs::File::open(path).ok()?.take(MAX_SIZE).read_to_end(&mut data).ok()?;
    Some(data)
}

/// Parses an offset from UTC: `UTC`, `+02:00`, `-08:00`, `02:00`.
pub(crate) fn offset(zone: &str) -> Option<TimeZone> {
    if zone == "UTC" {
        return Some(TimeZone::UTC);
    }
    let (sign, rest) = match zone.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, zone.strip_prefix('+').unwrap_or(zone)),
    };
    let (hours, minutes) = rest.split_once(':')?;
    let two_digits = |text: &str| -> Option<i32> {
        let is_number = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { text.parse().ok() } else { None }
    };
    let (hours, minutes) = (two_digits(hours)?, two_digits(minutes).filter(|minutes| *minutes < 60)?);
    Offset::from_seconds(sign * (hours * 3600 + minutes * 60)).ok().map(TimeZone::fixed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A zone's file (RFC 8536) without transitions, with a rule for all times.
    fn file(rule: &str) -> Vec<u8> {
        let header = [&b"TZif2"[..], &[0; 15], &[0; 19], &[1, 0, 0, 0, 4]].concat();
        let block = [&header[..], &3600_i32.to_be_bytes(), &[0, 0], b"CET\0"].concat();
        [&block[..], &block, format!("\n{rule}\n").as_bytes()].concat()
    }

    #[test]
    fn zones_of_the_machine_have_their_summer_time() {
        let folder = std::env::temp_dir().join(format!("zones-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("Europe")).unwrap();
        std::fs::write(folder.join("Europe/Berlin"), file("CET-1CEST,M3.5.0,M10.5.0/3")).unwrap();
        std::fs::write(folder.join("Europe/Broken"), b"TZif").unwrap();
        let zone = named(&folder, "Europe/Berlin").unwrap();
        let hour = |time: &str| zone.to_datetime(time.parse().unwrap()).hour();
        assert_eq!((hour("2026-07-01T12:00:00Z"), hour("2026-12-01T12:00:00Z")), (14, 13));
        let others =
            ["Europe/Broken", "Europe/Paris", "Europe", "", ".", "..", "../Europe/Berlin", "no\0where"];
        for other in others {
            assert_eq!(named(&folder, other), None, "{other:?}");
        }
        assert_eq!(named(&folder, folder.join("Europe/Berlin").to_str().unwrap()), None, "an absolute path");
        std::fs::remove_dir_all(folder).unwrap();
        assert_eq!(find("../UTC").unwrap_err(), ZoneError::Unknown("../UTC".to_owned()));
    }

    #[test]
    fn offsets_are_bounded() {
        assert!(find("-23:59").is_ok() && find("").is_ok());
        for zone in ["+1:00", "+99:00", "+01:60", "+01:0a", ":"] {
            assert_eq!(find(zone).unwrap_err(), ZoneError::Offset(zone.to_owned()));
        }
    }
}
