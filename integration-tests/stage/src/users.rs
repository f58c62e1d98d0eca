//! Who talks to the API server, and by which token.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A user that the API server knows by a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// May do everything.
    Admin,
    /// The agent's service account, `kube-system/cilium`.
    Agent,
    /// The operator's service account, `kube-system/cilium-operator`.
    Operator,
}

impl User {
    const ALL: [Self; 3] = [Self::Admin, Self::Agent, Self::Operator];

    /// The name that the API server, its roles and its audit log have for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Agent => "system:serviceaccount:kube-system:cilium",
            Self::Operator => "system:serviceaccount:kube-system:cilium-operator",
        }
    }

    fn account(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Agent => "cilium",
            Self::Operator => "cilium-operator",
        }
    }
}

/// The users' folders below the stage's one. Each is laid out as the one that a pod gets: `token`, `ca.crt`, `namespace`.
#[derive(Debug)]
pub(crate) struct Users {
    folder: PathBuf,
}

impl Users {
    pub(crate) fn new(stage: &Path) -> Result<Self> {
        let users = Self { folder: stage.join("accounts") };
        for user in User::ALL {
            fs::create_dir_all(users.folder(user))?;
            fs::write(users.folder(user).join("namespace"), "kube-system")?;
            users.replace(user)?;
        }
        Ok(users)
    }

    pub(crate) fn folder(&self, user: User) -> PathBuf {
        self.folder.join(user.account())
    }

    fn token(&self, user: User) -> PathBuf {
        self.folder(user).join("token")
    }

    /// Gives `user` another token, in its file at once; the API server reads them when it starts.
    pub(crate) fn replace(&self, user: User) -> Result<()> {
        let mut random = [0u8; 16];
        std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut random)?;
        let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let draft = self.folder(user).join("token.draft");
        fs::write(&draft, token)?;
        Ok(fs::rename(draft, self.token(user))?)
    }

    /// The API server's file of tokens.
    pub(crate) fn csv(&self) -> Result<String> {
        let line = |user: User| -> Result<String> {
            let token = fs::read_to_string(self.token(user))?;
            let groups = match user {
                User::Admin => "system:masters",
                User::Agent | User::Operator => "system:serviceaccounts,system:serviceaccounts:kube-system",
            };
            Ok(format!("{token},{},{},\"{groups}\"\n", user.name(), user.account()))
        };
        User::ALL.into_iter().map(line).collect()
    }

    /// Gives all of them the certificate by which they know the API server.
    pub(crate) fn trust(&self, certificate: &Path) -> Result<()> {
        for user in User::ALL {
            fs::copy(certificate, self.folder(user).join("ca.crt"))
                .context("the API server's certificate")?;
        }
        Ok(())
    }

    /// Writes a kubeconfig for `user`; token and certificate stay in their files, so that a replaced token counts.
    pub(crate) fn kubeconfig(&self, user: User, server: &str, path: &Path) -> Result<()> {
        let folder = self.folder(user);
        let (account, folder) = (user.account(), folder.display());
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: stage\n\
             clusters: [{{name: stage, cluster: {{server: '{server}', certificate-authority: '{folder}/ca.crt'}}}}]\n\
             users: [{{name: {account}, user: {{tokenFile: '{folder}/token'}}}}]\n\
             contexts: [{{name: stage, context: {{cluster: stage, user: {account}}}}}]\n"
        );
        Ok(fs::write(path, text)?)
    }
}
