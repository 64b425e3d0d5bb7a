//! What kube's errors for a request without an answer are made of.

use std::error::Error;

use hyper_util::client::legacy;
use kube::client::AuthError;

use super::errors::one_line;

/// Returns the error and its causes in one line. kube repeats a cause in its own text, so repeated
/// causes are left out.
#[must_use]
pub fn chain(error: &kube::Error) -> String {
    let mut auth = causes(error).filter_map(|cause| cause.downcast_ref::<AuthError>());
    if let Some(text) = auth.find_map(plugin_failure) {
        return text;
    }
    let mut line = String::new();
    for cause in causes(error) {
        let text = cause.to_string();
        if line.ends_with(&text) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&text);
    }
    one_line(&line)
}

/// Returns whether the request was never sent.
pub(super) fn never_connected(error: &kube::Error) -> bool {
    causes(error).any(|cause| {
        cause
            .downcast_ref::<legacy::Error>()
            .is_some_and(legacy::Error::is_connect)
    })
}

/// Returns why a credential plugin gave none. Its output is not shown: it may have tokens in it.
fn plugin_failure(error: &AuthError) -> Option<String> {
    let (what, status) = match error {
        AuthError::AuthExecRun { out, .. } => ("failed", out.status.to_string()),
        AuthError::AuthExecParse(_) | AuthError::ExecPluginFailed => {
            ("printed no ExecCredential", "exit status: 0".to_owned())
        }
        AuthError::AuthExecStart(error) => ("cannot be started", error.to_string()),
        _ => return None,
    };
    Some(format!(
        "the credential plugin of the kubeconfig {what} ({status}); run it by hand to see why"
    ))
}

fn causes(error: &kube::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    let first: &(dyn Error + 'static) = error;
    std::iter::successors(Some(first), |cause| Error::source(*cause))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{ExitStatus, Output};

    use super::*;

    #[test]
    fn output_of_a_credential_plugin_is_not_shown() {
        let failed = || AuthError::AuthExecRun {
            cmd: "login SECRET".into(),
            out: Box::new(Output {
                status: ExitStatus::from_raw(1 << 8),
                stdout: b"SECRET".into(),
                stderr: b"SECRET".into(),
            }),
        };
        // At the start, and at a request.
        for error in [
            kube::Error::Auth(failed()),
            kube::Error::Service(Box::new(failed())),
        ] {
            let text = chain(&error);
            assert!(text.contains("failed (exit status: 1)"), "{text}");
            assert!(!text.contains("SECRET"), "{text}");
        }
    }
}
