//! Background jobs as what the original calls controllers.

use api_models::{ControllerRuns, ControllerStatus, DateTime};
use hive::{Level, Status};

/// The jobs among the reporters of health, by name, with how their runs went.
pub(crate) fn controllers(reports: &[Status]) -> Vec<ControllerStatus> {
    reports.iter().filter_map(controller).collect()
}

/// A reporter is a job if the part of its path behind the module's names one: `job-X`, `timer-job-X`,
/// `observer-job-X`.
fn controller(report: &Status) -> Option<ControllerStatus> {
    let scopes = &report.id[report.module_segments.min(report.id.len())..];
    let job = scopes.iter().find_map(|scope| {
        ["job-", "timer-job-", "observer-job-"].iter().find_map(|kind| scope.strip_prefix(kind))
    })?;
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
    let name = if job.starts_with(module) { job.to_owned() } else { format!("{module}-{job}") };
    Some(ControllerStatus { name, status: Some(runs), ..Default::default() })
}
