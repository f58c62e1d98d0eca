//! Background jobs in the form of Cilium's controllers.

use std::collections::BTreeMap;

use api::ControllerUuids;
use api_models::{ControllerConfiguration, ControllerRuns, ControllerStatus, DateTime, GoDuration};
use hive::job::Schedule;
use hive::{Level, Status};

/// Returns the jobs among the reporters of health, with their schedules and the results of their runs. `schedules` is
/// keyed by the reporter's path.
pub(crate) fn controllers(
    reports: &[Status],
    schedules: &BTreeMap<String, Schedule>,
    uuids: &ControllerUuids,
) -> Vec<ControllerStatus> {
    let controllers = reports.iter().filter_map(|report| {
        let (path, controller) = (report.path(), controller(report)?);
        let schedule = schedules.get(&path).copied().unwrap_or_default();
        let configuration = ControllerConfiguration {
            error_retry: schedule.retries,
            interval: GoDuration(schedule.interval.unwrap_or_default()),
            ..ControllerConfiguration::default()
        };
        let uuid = uuids.of(&path);
        Some(ControllerStatus { configuration: Some(configuration), uuid, ..controller })
    });
    controllers.collect()
}

/// Converts a reporter into a controller; `None` if it is no job's. The name is that of the module and of the job, and for one
/// part of a job also that of the part: `loader-host-datapath-programs`.
fn controller(report: &Status) -> Option<ControllerStatus> {
    let job = report.job()?;
    let module = report.module();
    let module = module.rsplit('.').next().unwrap_or("");
    let failing = report.level == Level::Degraded;
    let count = i64::try_from(report.count).unwrap_or(i64::MAX);
    let runs = ControllerRuns {
        success_count: if failing { 0 } else { count },
        last_success_timestamp: report.last_ok.map(DateTime::from).unwrap_or_default(),
        consecutive_failure_count: if failing { count } else { 0 },
        failure_count: if failing { count } else { 0 },
        last_failure_msg: report.error.clone(),
        last_failure_timestamp: if failing { report.updated.into() } else { DateTime::default() },
    };
    let mut name = if job.starts_with(module) { job.to_owned() } else { format!("{module}-{job}") };
    if let Some((_, part)) = report.path().split_once(&format!("job-{job}.")) {
        name.push('-');
        name.push_str(&part.replace('.', "-"));
    }
    Some(ControllerStatus { name, status: Some(runs), ..Default::default() })
}
