//! The ports of a sidecar.

use super::settings::Ports;

/// The default port of the API.
pub(super) const API: u16 = 7373;
/// The default port of health and metrics.
pub(super) const ADMIN: u16 = 7374;

/// The lowest unprivileged port.
const FIRST: u16 = 1024;

/// Checks that both ports can be used.
pub(super) fn check(ports: Ports) -> Result<(), String> {
    for port in [ports.api, ports.admin] {
        if port < FIRST {
            return Err(format!("port {port} is privileged, use {FIRST} to 65535"));
        }
    }
    if ports.api == ports.admin {
        return Err(format!(
            "api and admin are both {}, use two ports",
            ports.api
        ));
    }
    Ok(())
}

/// Parses an annotation: `api=7373,admin=7374`, or one of them. `defaults` has the other one.
pub(super) fn parse(text: &str, defaults: Ports) -> Result<Ports, String> {
    const WRITE: &str = "write api=7373,admin=7374, or one of them";
    let mut ports = defaults;
    for part in text.split(',').map(str::trim) {
        let (name, number) = part.split_once('=').ok_or_else(|| WRITE.to_owned())?;
        let number = number.parse().map_err(|_| WRITE.to_owned())?;
        match name {
            "api" => ports.api = number,
            "admin" => ports.admin = number,
            _ => return Err(WRITE.to_owned()),
        }
    }
    check(ports)?;
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_can_be_set_alone() {
        let of = |text| parse(text, Ports::default()).map(|ports| (ports.api, ports.admin));
        assert_eq!(of("api=9000"), Ok((9000, 7374)));
        assert_eq!(of("admin=9001 , api=9000"), Ok((9000, 9001)));
        for bad in [
            "",
            "9000",
            "api",
            "api=x",
            "api=70000",
            "metrics=1",
            "api=80",
            "api=7374",
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
