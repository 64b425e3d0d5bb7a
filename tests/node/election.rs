//! Three replicas elect a leader, through a rolling update, and a Service selects the leader.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::app::{App, Log, Wanted, asking_pod};
use crate::harness::{Membership, Namespace, eventually, now};
use crate::install::Leasehold;
use crate::pods::LIMIT;

/// Serves its name on port 8080, and continuously queries whether it leads. The times are those of
/// the machine's clock, which all pods share, in hundredths of a second.
const SCRIPT: &str = r#"trap 'read end _ </proc/uptime; echo "stopped $end"; exit 0' TERM
mkdir /tmp/www; hostname >/tmp/www/index.html; httpd -p 8080 -h /tmp/www
while :; do
  read before _ </proc/uptime
  said=$(curl --silent "$LEASEHOLD_URL/v1/elections/billing")
  read after _ </proc/uptime
  echo "asked $before $after $said"
  sleep 0.1
done"#;
/// The resolution of /proc/uptime.
const TICK: Duration = Duration::from_millis(10);

/// The interval in which a replica acts as the leader because of an answer, by the machine's clock.
#[derive(Debug)]
struct Claim {
    token: u64,
    pod: String,
    from: Duration,
    until: Duration,
}

#[tokio::test]
async fn rolling_update_keeps_one_leader_behind_the_service() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let namespace = leasehold.namespace("election").await?;
    make(&namespace).await?;
    let service = Membership::of_service(&namespace, "leader").await?;
    let mut replicas = Replicas::default();
    replicas.until_rolled_out(leasehold, &namespace).await?;
    let first = until_followed(&namespace, &service).await?;

    let restart = ["rollout", "restart", "deployment/billing"];
    namespace.kubectl(&restart).await?.ok()?;
    let began = now();
    replicas.until_rolled_out(leasehold, &namespace).await?;
    let rolled = now().since(began);
    let last = until_followed(&namespace, &service).await?;
    ensure!(first != last, "{first} must have ended");
    let followed = service.checked()?;

    let (claims, asked) = replicas.claims()?;
    ensure!(replicas.0.len() == 6, "{:?}", replicas.0.keys());
    let terms = one_at_a_time(&claims)?;
    let leaders: Vec<_> = terms.values().collect();
    ensure!(
        *leaders[0] == first && leaders.last() == Some(&&last),
        "{terms:?}"
    );
    crate::tell(&format!(
        "measured: rolling update of three in {rolled:?}: leaders {leaders:?}; of {asked} answers {} were yes; \
         behind the Service: {followed:?}",
        claims.len()
    ))
}

async fn make(namespace: &Namespace) -> Result<()> {
    let wanted = Wanted {
        config: vec![("elect", "billing"), ("session-ttl", "15")],
        readiness: json!({"httpGet": {"port": 8080}, "periodSeconds": 1}),
        ..Wanted::default()
    };
    let mut template = asking_pod("billing", SCRIPT, &wanted);
    let _ours = template["metadata"]["name"].take();
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "billing"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "billing"}},
            "template": {"metadata": template["metadata"], "spec": template["spec"]}}});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "leader"},
        "spec": {"selector": {"leasehold.dev/leader-billing": "true"},
            "ports": [{"port": 80, "targetPort": 8080}]}});
    namespace.apply(&service).await?;
    namespace.apply(&deployment).await
}

/// The output of each replica, readable even after it is gone.
#[derive(Default)]
struct Replicas(BTreeMap<String, Log>);

impl Replicas {
    /// Waits until all replicas are of the newest template. In the meantime it opens the logs of
    /// new ones.
    async fn until_rolled_out(
        &mut self,
        leasehold: &'static Leasehold,
        namespace: &Namespace,
    ) -> Result<()> {
        eventually("three replicas of the newest kind", 3 * LIMIT, async || {
            let pods = ["get", "pods", "--selector", "app=billing", "-o", "json"];
            let pods = namespace.kubectl(&pods).await.ok()?.json().ok()?;
            for pod in pods["items"].as_array()? {
                let app = App::of(leasehold.machine, pod).ok()?;
                if !self.0.contains_key(&app.name)
                    && let Ok(log) = app.log()
                {
                    self.0.insert(app.name, log);
                }
            }
            let deployment = namespace.get("deployment", "billing").await.ok()?;
            let status = &deployment["status"];
            let is_seen = status["observedGeneration"] == deployment["metadata"]["generation"];
            let all = ["replicas", "updatedReplicas", "availableReplicas"];
            let are_three = all.iter().all(|count| status[count] == 3);
            (is_seen && are_three && pods["items"].as_array()?.len() == 3).then_some(())
        })
        .await
    }

    /// Returns all leads that they received, and the number of answers.
    fn claims(&mut self) -> Result<(Vec<Claim>, usize)> {
        let (mut claims, mut asked) = (Vec::new(), 0);
        for (pod, log) in &mut self.0 {
            let lines = log.lines()?;
            let stopped = lines
                .iter()
                .find_map(|(_, line)| line.strip_prefix("stopped "));
            let stopped = stopped.map(moment).transpose()?;
            for (_, line) in &lines {
                let Some(line) = line.strip_prefix("asked ") else {
                    continue;
                };
                asked += 1;
                claims.extend(claim(pod, line, stopped)?);
            }
        }
        Ok((claims, asked))
    }
}

/// Returns a claim that is never longer than the real one: it begins a little later and ends a
/// little earlier. A stopped app no longer acts. That is why its sidecar, which the kubelet ends
/// later, need not wait for the end of the validity.
fn claim(pod: &str, line: &str, stopped: Option<Duration>) -> Result<Option<Claim>> {
    let mut words = line.splitn(3, ' ');
    let mut next = || moment(words.next().unwrap_or_default());
    let (before, after) = (next()?, next()?);
    // A stopping sidecar returns nothing.
    let said: Value = serde_json::from_str(words.next().unwrap_or_default()).unwrap_or_default();
    if said["leader"] != true {
        return Ok(None);
    }
    let valid = said["validForMs"].as_u64().context("for how long?")?;
    let until = before + Duration::from_millis(valid);
    Ok(Some(Claim {
        token: said["fencingToken"].as_u64().context("without a token?")?,
        pod: pod.to_owned(),
        from: after + TICK,
        until: stopped.map_or(until, |stopped| until.min(stopped)),
    }))
}

fn moment(word: &str) -> Result<Duration> {
    Ok(Duration::from_secs_f64(word.parse()?))
}

/// Returns the leaders by token, in order. Asserts that no two overlap, and that each later one has
/// a larger token.
fn one_at_a_time(claims: &[Claim]) -> Result<BTreeMap<u64, String>> {
    let mut terms: BTreeMap<u64, (String, Duration, Duration)> = BTreeMap::new();
    for one in claims {
        let term = terms.entry(one.token);
        let (pod, from, until) = term.or_insert((one.pod.clone(), one.from, one.until));
        ensure!(*pod == one.pod, "{pod} led by the same token as {one:?}");
        (*from, *until) = ((*from).min(one.from), (*until).max(one.until));
    }
    let mut before = Duration::ZERO;
    for (token, (pod, from, until)) in &terms {
        ensure!(
            *from >= before,
            "{pod} led by {token} while another did: {terms:?}"
        );
        before = *until;
    }
    let terms = terms.into_iter();
    Ok(terms.map(|(token, (pod, ..))| (token, pod)).collect())
}

/// Waits until the Service selects only the leader, and returns its name.
async fn until_followed(namespace: &Namespace, service: &Membership) -> Result<String> {
    let address = namespace.get("service", "leader").await?["spec"]["clusterIP"].clone();
    let address = address.as_str().context("a Service must have an address")?;
    eventually("the Service to select the leader", LIMIT, async || {
        let locks = namespace.all("distributedlocks").await.ok()?;
        let is_ours = |lock: &&Value| lock["spec"]["resource"] == "election:billing";
        let lock = locks.iter().find(is_ours)?;
        let leader = lock["status"]["holder"]["pod"].as_str()?;
        service.states().last()?.iter().find(|pod| *pod == leader)?;
        let answer = reqwest::get(format!("http://{address}/")).await.ok()?;
        (answer.text().await.ok()?.trim() == leader).then(|| leader.to_owned())
    })
    .await
}
