package policies

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// The API server has a cost budget for each policy, for each rule, and for all rules of an object. It
// refuses a write that exceeds a budget. These writes are as large as the CRDs allow. The test fails if a
// write uses more than half of a budget.
func TestLargestWritesCostHalfOfABudgetAtMost(t *testing.T) {
	full := lockOf(long("r", 512), held(holder))
	full.Status.Waiters = append([]waiter{first.waits()}, fullQueue(30)...)
	full.Spec.ReleaseRequest = asks(holder.leaseID()+"."+long("0", 50), "Ask")
	full.Spec.ReleaseRequest.Reason = long("é", 1024)
	for range 8 {
		entry := ended("Expired", stranger, long("é", 512))
		entry.LeaseID, entry.Reason, entry.OwnerID = fmt.Sprintf("%064d", len(full.Status.Incidents)), long("é", 1024), long("é", 128)
		full.Status.Incidents = append(full.Status.Incidents, entry)
	}
	for range 32 {
		full.Status.Completed = append(full.Status.Completed, completion{
			Key: fmt.Sprintf("%0128d", len(full.Status.Completed)), CompletedAt: someTime, Token: 1, OwnerID: long("é", 128)})
	}
	recorded := func(kind, actor string, then func(*status)) func(*status) {
		return func(s *status) {
			s.record(kind, holder, actor)
			s.Incidents[8].Reason = full.Spec.ReleaseRequest.Reason
			s.Incidents = slices.Delete(s.Incidents, 0, 1)
			then(s)
		}
	}
	toLast := func(s *status) {
		last := s.Waiters[len(s.Waiters)-1]
		s.grant(first)
		s.Lease.ID, s.Waiters = last.LeaseID, nil
		s.Holder = &holderRecord{OwnerID: last.OwnerID, Pod: last.Pod, PodUID: last.PodUID, Session: last.Session, SessionTTLSeconds: last.SessionTTLSeconds}
	}
	forced := clone(full)
	forced.Spec.ReleaseRequest.Mode = "Force"
	for _, each := range []row{
		{"joins", third.token(), full, func(s *status) { s.Waiters = append(s.Waiters, third.waits()) }, allowed},
		{"completes", holder.token(), full, func(s *status) {
			s.Completed = slices.Clone(s.Completed[1:])
			s.complete(long("k", 128), s.Token)
		}, allowed},
		{"leaves", first.token(), full, func(s *status) { s.drop(0) }, allowed},
		{"hands over", holder.token(), full, func(s *status) { s.grant(first) }, allowed},
		{"hands over on request", holder.token(), full, recorded("ReleasedOnRequest", "admin", func(s *status) { s.grant(first) }), allowed},
		{"operator hands over", operator, full, recorded("Expired", "leasehold-operator", func(s *status) { s.grant(first) }), allowed},
		{"operator hands over to the last", operator, full, recorded("PodEnded", "leasehold-operator", toLast), allowed},
		{"operator frees by force", operator, forced, recorded("ForceReleased", "admin", (*status).free), allowed},
		{"takes over", stranger.token(), full, recorded("Expired", stranger.name, func(s *status) { s.grant(stranger); s.Waiters = nil }), allowed},
	} {
		in := peer
		w := each.write()
		t.Run(each.what, func(t *testing.T) {
			verdict(t, clusters[in]().refusals(t, w), allowed)
			for _, of := range bothModes {
				for _, policy := range clusters[of]().policies {
					if attributes, _ := w.attributes(); !policy.isAbout(attributes) || (of == strict && policy.Name != "leasehold-lock-take-over") {
						continue
					}
					begun := time.Now()
					conditions, checks := policy.cost(t, w)
					t.Logf("%s %s: match conditions %d, validations %d, %s", of, policy.Name, conditions, checks, time.Since(begun))
					if conditions > celconfig.RuntimeCELCostBudgetMatchConditions/2 || checks > celconfig.RuntimeCELCostBudget/2 {
						t.Errorf("%s costs too much", policy.Name)
					}
				}
			}
		})
	}
}

// Evaluates each rule of the CRD separately, with the longest queue and holder.
func TestEachRuleCostsATenthOfItsBudgetAtMost(t *testing.T) {
	of := lockOf(long("r", 512), held(holder))
	of.Status.Waiters = fullQueue(32)
	of.Status.Holder.Metadata = map[string]string{}
	for n := range 16 {
		of.Status.Holder.Metadata[fmt.Sprintf("%063d", n)] = long("v", 256)
	}
	before, after := content(of), content(of)
	definition := definitions()["distributedlocks"]
	env := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	for number, rule := range definition.structural.XValidations {
		one := *definition.structural
		one.XValidations = slices.Clone(definition.structural.XValidations[number : number+1])
		one.Properties = withoutRules(definition.structural.Properties)
		compiled, err := cel.Compile(&one, model.SchemaDeclType(&one, true), celconfig.PerCallLimit, env, cel.StoredExpressionsEnvLoader())
		check(err)
		validator := cel.NewValidator(&one, true, celconfig.PerCallLimit)
		begun := time.Now()
		const times = 20
		var left int64
		for range times {
			var errs []error
			found, remaining := validator.Validate(t.Context(), nil, &one, after, before, celconfig.RuntimeCELCostBudget)
			for _, each := range found {
				errs = append(errs, each)
			}
			if left = remaining; len(errs) > 0 {
				t.Fatal(errs)
			}
		}
		cost := celconfig.RuntimeCELCostBudget - left
		t.Logf("cost %6d, estimated at most %8d, %s: %s", cost, compiled[0].MaxCost, time.Since(begun)/times, rule.Rule)
		if cost > celconfig.PerCallLimit/10 {
			t.Errorf("the rule costs %d: %s", cost, rule.Rule)
		}
	}
}

// Evaluates the rule of the field spec.resource, which runs with each write of the object.
func TestRuleOfTheResourceCostsATenthOfItsBudgetAtMost(t *testing.T) {
	spec := definitions()["distributedlocks"].structural.Properties["spec"]
	resource := spec.Properties["resource"]
	validator := cel.NewValidator(&resource, false, celconfig.PerCallLimit)
	for _, text := range []string{long("r", 512), long("日", 170), long("\u2060", 170) + "a"} {
		begun := time.Now()
		errs, left := validator.Validate(t.Context(), nil, &resource, text, text, celconfig.RuntimeCELCostBudget)
		cost := celconfig.RuntimeCELCostBudget - left
		t.Logf("cost %6d, %s", cost, time.Since(begun))
		if len(errs) > 0 || cost > celconfig.PerCallLimit/10 {
			t.Errorf("the rule costs %d: %v", cost, errs)
		}
	}
}

func withoutRules(of map[string]schema.Structural) map[string]schema.Structural {
	plain := map[string]schema.Structural{}
	for name, each := range of {
		each.XValidations = nil
		if each.Properties != nil {
			each.Properties = withoutRules(each.Properties)
		}
		plain[name] = each
	}
	return plain
}
