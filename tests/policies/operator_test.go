package policies

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
)

const (
	nobodyBut   = "only to the first remaining entry of status.waiters"
	onlyDrops   = "only removes entries of status.waiters"
	leavesAlone = "ends a grant or leaves it unchanged"
	onlyLeaders = "its own requests only ask the leader of an election to resign"
	byForce     = "by force only for a spec.releaseRequest with mode Force"
)

func TestOperatorHandsLockToFirstWaiterThatIsLeft(t *testing.T) {
	of := queued(first.waits(), second.waits())
	recorded := func(s *status) { s.record("Expired", holder, "leasehold-operator") }
	handOver := func(s *status) { recorded(s); s.grant(first) }
	mark := func(s *status) {
		s.Conditions = []condition{{Type: "LongHeld", Status: "True", Reason: "HeldTooLong", Message: "test", LastTransitionTime: someTime}}
	}
	rows := besides(operator, of, func(*status) {},
		beside{"handed over", handOver, allowed},
		beside{"the first is expired too", func(s *status) {
			s.record("PodEnded", holder, "leasehold-operator")
			s.grant(second)
			s.Waiters = nil
		}, allowed},
		beside{"freed", func(s *status) { recorded(s); s.free() }, allowed},
		beside{"marked", mark, allowed},
		beside{"mark removed with the grant", func(s *status) { mark(s); handOver(s); s.Conditions = nil }, allowed},
		beside{"expired waiter dropped", func(s *status) { s.drop(0) }, allowed},
		// Grants to a pod that is not queued or not first.
		beside{"to a stranger", func(s *status) { recorded(s); s.grant(stranger) }, nobodyBut},
		beside{"to a stranger alone", func(s *status) { recorded(s); s.grant(stranger); s.Waiters = nil }, nobodyBut},
		beside{"to the second", func(s *status) { recorded(s); s.grant(second) }, nobodyBut},
		beside{"another uid", func(s *status) { handOver(s); s.Holder.PodUID = stranger.uid }, nobodyBut},
		beside{"another pod", func(s *status) { handOver(s); s.Holder.Pod = stranger.name }, nobodyBut},
		beside{"another session", func(s *status) { handOver(s); s.Holder.Session += "x" }, nobodyBut},
		beside{"another owner", func(s *status) { handOver(s); s.Holder.OwnerID += "x" }, nobodyBut},
		beside{"another TTL", func(s *status) { handOver(s); s.Holder.SessionTTLSeconds = 3 }, nobodyBut},
		beside{"another id", func(s *status) { handOver(s); s.Lease.ID += "x" }, nobodyBut},
		beside{"to the same holder", func(s *status) { recorded(s); s.Lease.ID += "x"; s.Token += 1000 }, nobodyBut},
		// Changes of the queue.
		beside{"waiter added", func(s *status) { s.Waiters = append(s.Waiters, stranger.waits()) }, onlyDrops},
		beside{"waiter replaced", func(s *status) { s.Waiters[0] = stranger.waits() }, onlyDrops},
		beside{"queue reversed", func(s *status) { slices.Reverse(s.Waiters) }, onlyDrops},
		beside{"waiter added at a hand-over", func(s *status) { handOver(s); s.Waiters = append(s.Waiters, stranger.waitsAgain()) }, onlyDrops},
		// Changes of a grant that continues.
		beside{"owner", func(s *status) { s.Holder.OwnerID += "x" }, leavesAlone},
		beside{"kept", func(s *status) { s.Lease.Kept = true }, leavesAlone},
		beside{"token", func(s *status) { s.Token += 1000 }, tokenWithGrant},
		beside{"transitions", func(s *status) { s.Transitions++ }, tokenWithGrant},
		// Changes of the record.
		beside{"unrecorded", func(s *status) { s.grant(first) }, isRecord},
		beside{"freed without a record", (*status).free, isRecord},
		beside{"recorded without an end", recorded, isRecord},
		beside{"record cleared", func(s *status) { s.Incidents = nil }, isRecord},
		beside{"older record dropped", func(s *status) { handOver(s); s.Incidents = s.Incidents[1:] }, isRecord},
	)
	for what, change := range map[string]func(*incident){
		"no grant":         func(i *incident) { i.LeaseID = "" },
		"another grant":    func(i *incident) { i.LeaseID = "g-b" },
		"another token":    func(i *incident) { i.Token++ },
		"another owner":    func(i *incident) { i.OwnerID += "x" },
		"another pod":      func(i *incident) { i.Pod += "x" },
		"a pod's own kind": func(i *incident) { i.Kind = "ReleasedOnRequest" },
		"an invented kind": func(i *incident) { i.Kind = "Other" },
	} {
		rows = append(rows, row{"record of " + what, operator, of, func(s *status) {
			handOver(s)
			change(&s.Incidents[1])
		}, isRecord})
	}
	rows = append(rows, row{"free lock", operator, lockOf("l", freed()), func(s *status) { s.grant(stranger) }, nobodyBut})
	run(t, bothModes, rows...)
}

func TestOperatorEndsByForceOnlyWhatWasAskedFor(t *testing.T) {
	own := holder.leaseID()
	for _, each := range []struct {
		what    string
		asked   *request
		change  func(*incident)
		refused string
	}{
		{"no request", nil, nil, byForce},
		{"not by force", asks(own, "Ask"), nil, byForce},
		{"another grant", asks("g-b", "Force"), nil, byForce},
		{"a longer id", asks(own+"1", "Force"), nil, byForce},
		{"a lease of a longer id", asks(own+"1.3", "Force"), nil, byForce},
		{"a lease of an id with a dot", asks(own+".3.0", "Force"), nil, byForce},
		{"another actor", asks(own, "Force"), func(i *incident) { i.Actor += "x" }, byForce},
		{"no actor", asks(own, "Force"), func(i *incident) { i.Actor = "" }, byForce},
		{"another reason", asks(own, "Force"), func(i *incident) { i.Reason += "x" }, byForce},
		{"no reason", asks(own, "Force"), func(i *incident) { i.Reason = "" }, byForce},
		{"as asked", asks(own, "Force"), nil, allowed},
		{"as an app's log names it", asks(own+".3", "Force"), nil, allowed},
	} {
		of := queued(first.waits())
		of.Spec.ReleaseRequest = each.asked
		run(t, bothModes, row{each.what, operator, of, func(s *status) {
			s.record("ForceReleased", holder, "admin")
			if each.change != nil {
				each.change(&s.Incidents[1])
			}
			s.grant(first)
		}, each.refused})
	}
}

// In the election among its replicas, the operator has the rights of an ordinary pod.
func TestOperatorTakesTheLockOfItsOwnElectionOnly(t *testing.T) {
	for _, each := range []struct{ namespace, resource, refused string }{
		{"leasehold-system", "election:leasehold-operator", allowed},
		{"leasehold-system", "election:leasehold-operator-2", nobodyBut},
		{"leasehold-system", "leasehold-operator", nobodyBut},
		{namespaceName, "election:leasehold-operator", nobodyBut},
	} {
		for _, of := range bothModes {
			taken := row{each.resource, operator, lockOf(each.resource, nil), func(s *status) { s.grant(stranger) }, ""}.write()
			taken.namespace = each.namespace
			verdict(t, clusters[of]().refusals(t, taken), each.refused)
		}
	}
}

func TestOperatorRevokesSessions(t *testing.T) {
	before := sessionOf(holder, nil)
	after := sessionOf(holder, map[string]any{"renewals": 1, "revoked": revocation("Expired", "leasehold-operator")})
	for _, of := range bothModes {
		verdict(t, clusters[of]().refusals(t, sessionWrite(operator, after, before)), allowed)
	}
}

func TestOperatorAsksLeadersAndChangesNothingElseOfALock(t *testing.T) {
	const onlyRequest = "changes only spec.releaseRequest"
	asked := func(change func(*request)) func(*lock) {
		return func(l *lock) {
			l.Spec.ReleaseRequest = &request{LeaseID: holder.leaseID(), Mode: "Ask", Reason: "not Ready", Actor: operatorName}
			change(l.Spec.ReleaseRequest)
		}
	}
	asIs := func(*request) {}
	also := func(field string, value any) func(*lock) {
		return func(l *lock) { asked(asIs)(l); l.Metadata[field] = value }
	}
	retain := 60
	for _, each := range []struct {
		what     string
		resource string
		change   func(*lock)
		refused  string
	}{
		{"asked", "election:jobs", asked(asIs), allowed},
		{"by force", "election:jobs", asked(func(r *request) { r.Mode = "Force" }), onlyLeaders},
		{"no election", "jobs", asked(asIs), onlyLeaders},
		{"in another's name", "election:jobs", asked(func(r *request) { r.Actor = "releaser" }), "set it to \"" + operatorName + "\""},
		{"without a reason", "election:jobs", asked(func(r *request) { r.Reason = " " }), "reason is blank"},
		{"another grant", "election:jobs", asked(func(r *request) { r.LeaseID += "x" }), onlyLeaders},
		{"one of its leases", "election:jobs", asked(func(r *request) { r.LeaseID += ".3" }), onlyLeaders},
		{"free", "election:jobs", func(l *lock) { asked(asIs)(l); l.Status = freed() }, onlyLeaders},
		{"kept for shorter", "election:jobs", func(l *lock) { l.Spec.RetainSeconds = &retain }, onlyRequest},
		{"kept for shorter, and asked", "election:jobs", func(l *lock) { asked(asIs)(l); l.Spec.RetainSeconds = &retain }, onlyRequest},
		{"marked later", "jobs", func(l *lock) { l.Spec.LongHeldSeconds = &retain }, onlyRequest},
		{"labelled", "election:jobs", also("labels", map[string]any{"a": "b"}), onlyRequest},
		{"annotated", "election:jobs", also("annotations", map[string]any{"a": "b"}), onlyRequest},
		{"finalizers", "election:jobs", also("finalizers", []any{"a.example/b"}), onlyRequest},
		{"owned", "election:jobs", also("ownerReferences", []any{map[string]any{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}}), onlyRequest},
	} {
		for _, of := range bothModes {
			t.Run(string(of)+"/"+each.what, func(t *testing.T) {
				before, after := lockOf(each.resource, held(holder)), lockOf(each.resource, held(holder))
				each.change(&after)
				before.Status = after.Status
				verdict(t, clusters[of]().refusals(t, writes(operator, admission.Update, lockKind, after, before)), each.refused)
			})
		}
	}
	for lease, refused := range map[string]string{
		holder.leaseID(): onlyLeaders, holder.leaseID() + ".3": onlyLeaders, "g-before": allowed, holder.leaseID() + "1": allowed,
		holder.leaseID() + ".1.x": allowed,
	} {
		before, after := lockOf("election:jobs", held(holder)), lockOf("election:jobs", held(holder))
		before.Spec.ReleaseRequest = &request{LeaseID: lease, Mode: "Force", Reason: "stuck", Actor: "jane"}
		asked(asIs)(&after)
		for _, of := range bothModes {
			verdict(t, clusters[of]().refusals(t, writes(operator, admission.Update, lockKind, after, before)), refused)
		}
	}
}

var podKind = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}

func TestOperatorLabelsLeadersAndChangesNothingElseOfPods(t *testing.T) {
	const onlyLabels, noOtherLabel = "changes only labels of a pod", "writes only labels of a pod that begin"
	old := map[string]any{
		"metadata": map[string]any{"name": "p", "annotations": map[string]any{"note": "x"},
			"labels": map[string]any{"app": "ours", "leasehold.dev/leader-old": "true"}},
		"spec": map[string]any{"containers": []any{map[string]any{"name": "app", "image": "app"}}},
	}
	labels := func(change func(map[string]any)) func(map[string]any) {
		return func(pod map[string]any) { change(pod["metadata"].(map[string]any)["labels"].(map[string]any)) }
	}
	meta := func(key string, value any) func(map[string]any) {
		return func(pod map[string]any) { pod["metadata"].(map[string]any)[key] = value }
	}
	for _, each := range []struct {
		what    string
		change  func(map[string]any)
		refused string
	}{
		{"leader", labels(func(l map[string]any) { l["leasehold.dev/leader-billing"] = "true" }), allowed},
		{"leader changed", labels(func(l map[string]any) { l["leasehold.dev/leader-old"] = "x" }), allowed},
		{"leader gone", labels(func(l map[string]any) { delete(l, "leasehold.dev/leader-old") }), allowed},
		{"another label changed", labels(func(l map[string]any) { l["app"] = "another" }), noOtherLabel},
		{"another label gone", labels(func(l map[string]any) { delete(l, "app") }), noOtherLabel},
		{"another label", labels(func(l map[string]any) { l["more"] = "x" }), noOtherLabel},
		{"all labels gone", meta("labels", map[string]any{}), noOtherLabel},
		{"no election", labels(func(l map[string]any) { l["leasehold.dev/leader"] = "true" }), noOtherLabel},
		{"injection", labels(func(l map[string]any) { l["leasehold.dev/inject"] = "true" }), noOtherLabel},
		{"another prefix", labels(func(l map[string]any) { l["x.leasehold.dev/leader-a"] = "true" }), noOtherLabel},
		{"leader and another", labels(func(l map[string]any) { l["leasehold.dev/leader-a"] = "true"; l["app"] = "x" }), noOtherLabel},
		{"annotation", meta("annotations", map[string]any{"note": "x", "leasehold.dev/leader-a": "true"}), onlyLabels},
		{"finalizer", meta("finalizers", []any{"leasehold.dev/leader-a"}), onlyLabels},
		{"owner", meta("ownerReferences", []any{map[string]any{"kind": "Node", "name": "x", "uid": "x"}}), onlyLabels},
		{"image", func(pod map[string]any) {
			pod["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)["image"] = "another"
		}, onlyLabels},
		{"deadline", func(pod map[string]any) { pod["spec"].(map[string]any)["activeDeadlineSeconds"] = 1 }, onlyLabels},
	} {
		t.Run(each.what, func(t *testing.T) {
			after := clone(old)
			each.change(after)
			onlyTheOperator(t, write{operation: admission.Update, kind: podKind, resource: "pods", namespace: namespaceName,
				name: "p", object: content(after), old: content(old)}, each.refused)
		})
	}
}

// A policy refuses the write to the operator. Other users may make it, as far as their rights allow.
func onlyTheOperator(t *testing.T, w write, words string) {
	t.Helper()
	w.by = operator
	verdict(t, clusters[strict]().refusals(t, w), words)
	w.by = admin
	verdict(t, clusters[strict]().refusals(t, w), allowed)
}

func TestOperatorBindsOneRoleToServiceAccountsOfTheNamespace(t *testing.T) {
	const (
		oneName, itsOwn = "writes only RoleBindings named leasehold-sidecar", "and writes only those that have it"
		oneRole         = "binds only the ClusterRole leasehold-sidecar"
		accounts        = "only to service accounts of the RoleBinding's own namespace"
	)
	kind := schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding"}
	type m = map[string]any
	binding := func() m {
		return m{
			"metadata": m{"name": "leasehold-sidecar", "labels": m{"app.kubernetes.io/managed-by": "leasehold-operator"}},
			"roleRef":  m{"kind": "ClusterRole", "name": "leasehold-sidecar"},
			"subjects": []any{m{"kind": "Group", "name": "system:serviceaccounts:" + namespaceName},
				m{"kind": "ServiceAccount", "name": "a", "namespace": namespaceName}},
		}
	}
	subject := func(of m, n int) m { return of["subjects"].([]any)[n].(m) }
	unlabelled := func(of m) { of["metadata"].(m)["labels"] = m{} }
	for _, each := range []struct {
		what    string
		change  func(m)
		refused string
	}{
		{"ordinary", func(m) {}, allowed},
		{"another name", func(of m) { of["metadata"].(m)["name"] = "another" }, oneName},
		{"a longer name", func(of m) { of["metadata"].(m)["name"] = "leasehold-sidecar-2" }, oneName},
		{"not labelled", unlabelled, itsOwn},
		{"of Helm", func(of m) { of["metadata"].(m)["labels"] = m{"app.kubernetes.io/managed-by": "Helm"} }, itsOwn},
		{"another role", func(of m) { of["roleRef"].(m)["name"] = "cluster-admin" }, oneRole},
		{"another kind of role", func(of m) { of["roleRef"].(m)["kind"] = "Role" }, oneRole},
		{"all accounts", func(of m) { subject(of, 0)["name"] = "system:serviceaccounts" }, accounts},
		{"accounts elsewhere", func(of m) { subject(of, 0)["name"] = "system:serviceaccounts:kube-system" }, accounts},
		{"a user", func(of m) { subject(of, 0)["kind"] = "User" }, accounts},
		{"an account elsewhere", func(of m) { subject(of, 1)["namespace"] = "leasehold-system" }, accounts},
	} {
		made := binding()
		each.change(made)
		w := write{kind: kind, resource: "rolebindings", namespace: namespaceName, name: made["metadata"].(m)["name"].(string)}
		t.Run("created, "+each.what, func(t *testing.T) {
			w := w
			w.operation, w.object = admission.Create, content(made)
			onlyTheOperator(t, w, each.refused)
		})
		t.Run("updated, "+each.what, func(t *testing.T) {
			w := w
			w.operation, w.object, w.old = admission.Update, content(made), content(binding())
			onlyTheOperator(t, w, each.refused)
		})
	}
	foreign := binding()
	unlabelled(foreign)
	w := write{kind: kind, resource: "rolebindings", namespace: namespaceName, name: "leasehold-sidecar", operation: admission.Delete}
	w.old = content(binding())
	onlyTheOperator(t, w, allowed)
	w.old = content(foreign)
	onlyTheOperator(t, w, itsOwn)
	w.operation, w.object = admission.Update, content(binding())
	onlyTheOperator(t, w, itsOwn)
}

func TestOperatorWritesOneSecret(t *testing.T) {
	const oneSecret, oneType = "writes only the Secret leasehold-webhook-cert in its own namespace", "only Secrets of the type kubernetes.io/tls"
	kind := schema.GroupVersionKind{Version: "v1", Kind: "Secret"}
	for _, each := range []struct{ namespace, name, of, refused string }{
		{"leasehold-system", "leasehold-webhook-cert", "kubernetes.io/tls", allowed},
		{"leasehold-system", "another", "kubernetes.io/tls", oneSecret},
		{"leasehold-system", "leasehold-webhook-cert", "Opaque", oneType},
		{"leasehold-system", "leasehold-webhook-cert", "kubernetes.io/service-account-token", oneType},
		{namespaceName, "leasehold-webhook-cert", "kubernetes.io/tls", oneSecret},
	} {
		made := content(map[string]any{"metadata": map[string]any{"name": each.name}, "type": each.of})
		w := write{kind: kind, resource: "secrets", namespace: each.namespace, name: each.name}
		w.operation, w.object = admission.Create, made
		onlyTheOperator(t, w, each.refused)
		w.operation, w.old = admission.Update, made
		onlyTheOperator(t, w, each.refused)
	}
	w := write{kind: kind, resource: "secrets", namespace: "leasehold-system", name: "another", operation: admission.Delete,
		old: content(map[string]any{"metadata": map[string]any{"name": "another"}})}
	onlyTheOperator(t, w, oneSecret)
}

func TestOperatorChangesTheAuthorityOfItsWebhookOnly(t *testing.T) {
	const words = "changes only the trusted CA of a webhook's configuration"
	kind := schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingWebhookConfiguration"}
	type m = map[string]any
	configuration := func() m {
		return m{"metadata": m{"name": "leasehold"}, "webhooks": []any{m{
			"name": "inject.leasehold.dev", "clientConfig": m{"caBundle": "YQ==", "service": m{"name": "leasehold-webhook", "namespace": "leasehold-system"}},
			"rules": []any{m{"resources": []any{"pods"}}}, "failurePolicy": "Fail", "matchPolicy": "Equivalent",
			"namespaceSelector": m{"matchLabels": m{"a": "b"}}, "objectSelector": m{}, "sideEffects": "None",
			"timeoutSeconds": 5, "admissionReviewVersions": []any{"v1"}, "reinvocationPolicy": "IfNeeded",
			"matchConditions": []any{m{"name": "a", "expression": "true"}},
		}}}
	}
	webhook := func(of m) m { return of["webhooks"].([]any)[0].(m) }
	update := func(t *testing.T, change func(m), refused string) {
		after := configuration()
		change(after)
		onlyTheOperator(t, write{operation: admission.Update, kind: kind, resource: "mutatingwebhookconfigurations", name: "leasehold",
			object: content(after), old: content(configuration())}, refused)
	}
	update(t, func(of m) { webhook(of)["clientConfig"].(m)["caBundle"] = "Yg==" }, allowed)
	update(t, func(of m) { webhook(of)["clientConfig"].(m)["service"].(m)["name"] = "another" }, words)
	update(t, func(of m) { webhook(of)["clientConfig"].(m)["url"] = "https://example.com" }, words)
	for key := range webhook(configuration()) {
		if key != "clientConfig" && key != "name" {
			update(t, func(of m) { delete(webhook(of), key) }, words)
		}
	}
	update(t, func(of m) { webhook(of)["name"] = "another.leasehold.dev" }, words)
	for _, key := range []string{"labels", "annotations"} {
		update(t, func(of m) { of["metadata"].(m)[key] = m{"a": "b"} }, words)
	}
	update(t, func(of m) { of["metadata"].(m)["finalizers"] = []any{"x/y"} }, words)
	update(t, func(of m) { of["metadata"].(m)["ownerReferences"] = []any{m{"uid": "x"}} }, words)
	update(t, func(of m) { of["webhooks"] = []any{} }, words)
	update(t, func(of m) {
		of["webhooks"] = append(of["webhooks"].([]any), webhook(configuration()))
	}, words)
	for _, operation := range []admission.Operation{admission.Create, admission.Delete} {
		w := write{operation: operation, kind: kind, resource: "mutatingwebhookconfigurations", name: "leasehold"}
		if operation == admission.Create {
			w.object = content(configuration())
		} else {
			w.old = content(configuration())
		}
		onlyTheOperator(t, w, words)
	}
}

func TestOnlyTheOperatorWritesEventsInItsName(t *testing.T) {
	const onlyOperator = "only the operator writes Events"
	for _, each := range []struct{ group, field, reporter, refused string }{
		{"events.k8s.io", "reportingController", "leasehold.dev/operator", onlyOperator},
		{"", "reportingComponent", "leasehold.dev/operator", onlyOperator},
		{"events.k8s.io", "reportingController", "leasehold.dev/sidecar", allowed},
		{"events.k8s.io", "reportingController", "leasehold.dev/operator-2", allowed},
		{"", "reportingComponent", "kubelet", allowed},
		{"", "unset", "", allowed},
	} {
		made := content(map[string]any{"metadata": map[string]any{"name": "e"}, each.field: each.reporter})
		w := write{kind: schema.GroupVersionKind{Group: each.group, Version: "v1", Kind: "Event"}, resource: "events",
			namespace: namespaceName, name: "e"}
		for _, of := range bothModes {
			w.operation, w.object, w.old = admission.Create, made, nil
			for _, by := range []who{admin, holder.token()} {
				w.by = by
				verdict(t, clusters[of]().refusals(t, w), each.refused)
			}
			w.by = operator
			verdict(t, clusters[of]().refusals(t, w), allowed)
			// An Event cannot be turned into one of the operator either.
			w.by, w.operation, w.old = admin, admission.Update, content(map[string]any{"metadata": map[string]any{"name": "e"}})
			verdict(t, clusters[of]().refusals(t, w), each.refused)
		}
	}
}
