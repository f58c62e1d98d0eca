//! Credentials in files that change, in real time.

use super::*;
use crate::jobs::follow_credentials;

fn kubeconfig(token: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{name: c, cluster: {{server: 'http://fake'}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         users: [{{name: u, user: {{token: {token}}}}}]\n"
    )
}

/// Starts a hive with a job that follows the file.
async fn following(file: &std::path::Path) -> TestHive {
    let place = Place::Kubeconfig(file.to_owned());
    let mut hive = TestHive::new(module(
        "client",
        "x",
        [invoke(move |health: Health, jobs: JobGroup| {
            let (metrics, limiter) = (ClientMetrics::default(), (Limiter::new(0.0, 1), Fence::default()));
            let connect = Arc::new(Fake::new(&["pods"]));
            let link =
                Link::new(place.clone(), vec![], connect, limiter, metrics, health.child("server")).unwrap();
            jobs.one_shot("credentials", move |cx: JobCx| follow_credentials(Arc::new(link), cx)).add();
        })],
    ));
    hive.start().await;
    hive
}

fn health(hive: &TestHive) -> String {
    hive.hive().health().at("client.job-credentials").map_or_else(String::new, |status| status.message)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repaired_file_is_read_at_once_and_the_job_ends_when_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    std::fs::write(&file, kubeconfig("first")).unwrap();
    let mut hive = following(&file).await;

    std::fs::write(&file, "users: [").unwrap();
    hive.until("the file is refused", || health(&hive).contains("previous credentials")).await;
    std::fs::write(&file, kubeconfig("second")).unwrap();
    hive.until("the file is read", || health(&hive) == "read again").await;

    std::fs::write(&file, "users: [").unwrap();
    hive.until("the file is refused again", || health(&hive).contains("previous credentials")).await;
    hive.stop().await;
}
