//! What a kubeconfig says, made usable or refused before anything is asked of the API server.
//!
//! Only the file counts: the variables `HTTPS_PROXY` and the like, which a pod often has for its
//! app, do not lead the agent's own calls through a proxy.

use std::path::Path;

use anyhow::{Context, bail};
use http::{HeaderValue, Uri};
use kube::Config;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use secrecy::{ExposeSecret, SecretString};

/// The access that a kubeconfig describes: this file, else the one that kubectl would use.
pub(super) async fn load(path: Option<&Path>, context: Option<&String>) -> anyhow::Result<Config> {
    let (read, name) = if let Some(path) = path {
        let name = format!("the kubeconfig {}", path.display());
        let read = Kubeconfig::read_from(path).with_context(|| format!("cannot read {name}"))?;
        (read, name)
    } else {
        let read = Kubeconfig::read().context(
            "no API server is configured: give --kubeconfig, or run in a pod with a ServiceAccount \
             token",
        )?;
        (read, "the kubeconfig".to_owned())
    };
    let options = KubeConfigOptions {
        context: context.cloned(),
        ..KubeConfigOptions::default()
    };
    let proxy = proxy_of(&read, context).map(str::to_owned);
    let used = async {
        let mut config = Config::from_custom_kubeconfig(read, &options).await?;
        config.proxy_url = proxy.as_deref().map(proxy_url).transpose()?;
        make_token_usable(&mut config.auth_info)?;
        anyhow::Ok(config)
    };
    used.await.with_context(|| format!("cannot use {name}"))
}

/// The proxy of the context's cluster.
fn proxy_of<'a>(kubeconfig: &'a Kubeconfig, context: Option<&'a String>) -> Option<&'a str> {
    let context = context.or(kubeconfig.current_context.as_ref())?;
    let named = kubeconfig
        .contexts
        .iter()
        .find(|one| one.name == *context)?;
    let cluster = &named.context.as_ref()?.cluster;
    let named = kubeconfig
        .clusters
        .iter()
        .find(|one| one.name == *cluster)?;
    let proxy = named.cluster.as_ref()?.proxy_url.as_deref()?;
    (!proxy.is_empty()).then_some(proxy)
}

/// The URL is not repeated in the words: it may carry a password.
fn proxy_url(text: &str) -> anyhow::Result<Uri> {
    let url: Uri = text
        .parse()
        .context("proxy-url is no URL; write http://HOST:PORT")?;
    let authority = url.authority().map_or("", |authority| authority.as_str());
    if url.scheme_str() != Some("http") || authority.is_empty() {
        bail!(
            "proxy-url must be http://HOST:PORT, a proxy that knows CONNECT; take it out if the \
             API server can be reached without"
        );
    }
    if authority.contains('@') {
        bail!(
            "proxy-url has a user name or a password in it, which are not sent; use a proxy that \
             asks for none"
        );
    }
    Ok(url)
}

/// A token that was written into the file with its line break is usable without; one with a
/// character that no header can carry is not.
fn make_token_usable(user: &mut AuthInfo) -> anyhow::Result<()> {
    if let Some(token) = &user.token {
        let trimmed = token.expose_secret().trim();
        check_token(trimmed).context("the user's token")?;
        user.token = Some(SecretString::from(trimmed));
    } else if let Some(file) = &user.token_file {
        // Read again and again later, as it is.
        let token = std::fs::read_to_string(file)
            .with_context(|| format!("the user's tokenFile {file} cannot be read"))?;
        check_token(&token).with_context(|| format!("the user's tokenFile {file}"))?;
    }
    Ok(())
}

fn check_token(token: &str) -> anyhow::Result<()> {
    if HeaderValue::from_str(token).is_err() {
        bail!(
            "it has a character that no HTTP header can carry, such as a line break; write the \
             token in one line without an end (`printf %s`, not `echo`)"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_is_the_one_of_the_contexts_cluster() {
        let kubeconfig = Kubeconfig::from_yaml(
            "{current-context: a, \
             contexts: [{name: a, context: {cluster: k}}, {name: b, context: {cluster: l}}, \
             {name: c, context: {cluster: m}}], \
             clusters: [{name: k, cluster: {server: 'https://k'}}, \
             {name: l, cluster: {server: 'https://l', proxy-url: 'http://proxy:3128'}}, \
             {name: m, cluster: {server: 'https://m', proxy-url: ''}}]}",
        )
        .unwrap();
        let of =
            |context: &str| proxy_of(&kubeconfig, Some(&context.to_owned())).map(str::to_owned);
        assert_eq!(proxy_of(&kubeconfig, None), None);
        assert_eq!(of("b").as_deref(), Some("http://proxy:3128"));
        assert_eq!((of("c"), of("d")), (None, None));
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_refused_without_showing_its_password() {
        assert!(proxy_url("http://proxy.example:3128").is_ok());
        for (bad, words) in [
            ("socks5://proxy:1080", "must be http://"),
            ("https://proxy:3129", "must be http://"),
            ("proxy:3128", "must be http://"),
            ("http://", "no URL"),
            ("http://me:secret@proxy", "which are not sent"),
        ] {
            let said = format!("{:#}", proxy_url(bad).unwrap_err());
            assert!(
                said.contains(words) && !said.contains("secret"),
                "{bad}: {said}"
            );
        }
    }

    #[test]
    fn a_token_loses_its_line_break_and_nothing_else() {
        let user = |token: &str| AuthInfo {
            token: Some(SecretString::from(token)),
            ..AuthInfo::default()
        };
        let mut good = user("abc.def\n");
        make_token_usable(&mut good).unwrap();
        assert_eq!(good.token.unwrap().expose_secret(), "abc.def");
        for bad in ["abc\ndef", "abc\u{0}"] {
            let said = format!("{:#}", make_token_usable(&mut user(bad)).unwrap_err());
            assert!(
                said.contains("in one line") && !said.contains("abc"),
                "{said}"
            );
        }
    }
}
