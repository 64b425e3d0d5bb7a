package policies

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/predicates/rules"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

// The repository's root, seen from this directory.
const root = "../.."

// A mode of the admission policies. The chart and docs/install.md install all files of the directory.
// Of take-over-strict.yaml and take-over-peer.yaml they install only the one of the mode.
type mode string

const (
	strict mode = "strict"
	peer   mode = "peer"
	// Strict mode with a token floor.
	raised mode = "raised"
)

// The floor of the mode raised, as the chart writes it into the policies.
const someFloor = 50_000_000

var bothModes = []mode{strict, peer}

// The policies and CRDs that the API server evaluates for a write.
type cluster struct {
	policies    []*policy
	definitions map[string]*definition
}

var clusters = map[mode]func() *cluster{
	strict: sync.OnceValue(func() *cluster { return load(strict) }),
	peer:   sync.OnceValue(func() *cluster { return load(peer) }),
	raised: sync.OnceValue(func() *cluster { return load(raised) }),
}

func load(of mode) *cluster {
	loaded := &cluster{definitions: definitions()}
	takeOver := of
	if of == raised {
		takeOver = strict
	}
	for _, file := range policyFiles() {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		if strings.HasPrefix(name, "take-over-") && name != "take-over-"+string(takeOver) {
			continue
		}
		for _, found := range readPolicies(file) {
			if of == raised {
				raiseFloor(found)
			}
			loaded.policies = append(loaded.policies, compile(found, environment.MustBaseEnvSet(
				environment.DefaultCompatibilityVersion()), environment.StoredExpressions))
		}
	}
	return loaded
}

func raiseFloor(of *admissionv1.ValidatingAdmissionPolicy) {
	for i := range of.Spec.Variables {
		if variable := &of.Spec.Variables[i]; variable.Name == "tokenFloor" {
			variable.Expression = fmt.Sprint(someFloor)
		}
	}
}

func policyFiles() []string {
	files := must(filepath.Glob(filepath.Join(root, "charts/leasehold/files/admission/*.yaml")))
	if len(files) == 0 {
		panic("no admission policies found")
	}
	return files
}

// Returns the policies of a file. A policy without a binding that denies would enforce nothing.
func readPolicies(file string) []*admissionv1.ValidatingAdmissionPolicy {
	var policies []*admissionv1.ValidatingAdmissionPolicy
	bound := map[string]bool{}
	for _, document := range documents(file) {
		var kind metav1.TypeMeta
		check(yaml.Unmarshal(document, &kind))
		switch kind.Kind {
		case "ValidatingAdmissionPolicy":
			found := &admissionv1.ValidatingAdmissionPolicy{}
			check(yaml.UnmarshalStrict(document, found))
			policies = append(policies, found)
		case "ValidatingAdmissionPolicyBinding":
			found := &admissionv1.ValidatingAdmissionPolicyBinding{}
			check(yaml.UnmarshalStrict(document, found))
			isDenied := len(found.Spec.ValidationActions) == 1 && found.Spec.ValidationActions[0] == admissionv1.Deny
			bound[found.Spec.PolicyName] = isDenied && found.Spec.MatchResources == nil && found.Spec.ParamRef == nil
		default:
			panic(file + ": unexpected kind " + kind.Kind)
		}
	}
	for _, found := range policies {
		if !bound[found.Name] {
			panic(file + ": no plain binding denies by " + found.Name)
		}
	}
	return policies
}

func documents(file string) [][]byte {
	var found [][]byte
	for document := range bytes.SplitSeq(must(os.ReadFile(file)), []byte("\n---\n")) {
		found = append(found, document)
	}
	return found
}

// A compiled policy. Its parts are kept because the validator does not report their costs.
type policy struct {
	*admissionv1.ValidatingAdmissionPolicy
	validator  validating.Validator
	conditions cel.ConditionEvaluator
	checks     cel.ConditionEvaluator
}

// Compiles a policy as the API server's plugin does (its compilePolicy is not exported).
func compile(from *admissionv1.ValidatingAdmissionPolicy, env *environment.EnvSet, kind environment.Type) *policy {
	compiler := must(cel.NewCompositedCompiler(env))
	withParams := cel.OptionalVariableDeclarations{HasParams: from.Spec.ParamKind != nil}
	withAuthorizer := withParams
	withAuthorizer.HasAuthorizer = true
	for _, variable := range from.Spec.Variables {
		result := compiler.CompileAndStoreVariable(&validating.Variable{Name: variable.Name, Expression: variable.Expression}, withAuthorizer, kind)
		if result.Error != nil {
			panic(from.Name + ": variable " + variable.Name + ": " + result.Error.Error())
		}
	}
	var conditions, checks, messages []cel.ExpressionAccessor
	for i := range from.Spec.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&from.Spec.MatchConditions[i]))
	}
	for _, validation := range from.Spec.Validations {
		checks = append(checks, &validating.ValidationCondition{
			Expression: validation.Expression, Message: validation.Message, Reason: validation.Reason})
		var message cel.ExpressionAccessor
		if validation.MessageExpression != "" {
			message = &validating.MessageExpressionCondition{MessageExpression: validation.MessageExpression}
		}
		messages = append(messages, message)
	}
	for _, expression := range append(conditions, checks...) {
		if result := compiler.CompileCELExpression(expression, withAuthorizer, kind); result.Error != nil {
			panic(from.Name + ": " + expression.GetExpression() + ": " + result.Error.Error())
		}
	}
	for _, expression := range messages {
		if expression == nil {
			continue
		}
		if result := compiler.CompileCELExpression(expression, withParams, kind); result.Error != nil {
			panic(from.Name + ": " + expression.GetExpression() + ": " + result.Error.Error())
		}
	}
	compiled := &policy{
		ValidatingAdmissionPolicy: from,
		conditions:                compiler.CompileCondition(conditions, withAuthorizer, kind),
		checks:                    compiler.CompileCondition(checks, withAuthorizer, kind),
	}
	var matcher matchconditions.Matcher
	if len(conditions) > 0 {
		matcher = matchconditions.NewMatcher(compiled.conditions, from.Spec.FailurePolicy, "policy", "validate", from.Name)
	}
	compiled.validator = validating.NewValidator(compiled.checks, matcher,
		compiler.CompileCondition(nil, withAuthorizer, kind),
		compiler.CompileCondition(messages, withParams, kind), from.Spec.FailurePolicy, nil)
	return compiled
}

// A write, as the API server passes it to policies.
type write struct {
	by          who
	operation   admission.Operation
	kind        schema.GroupVersionKind
	resource    string
	subresource string
	namespace   string
	name        string
	object, old map[string]any
	options     runtime.Object
	// Set if the namespace is being deleted or has annotations.
	of *corev1.Namespace
}

// Evaluates a write. Returns the refusals, with the errors of the CRDs first.
func (c *cluster) refusals(t *testing.T, w write) []string {
	t.Helper()
	var refusals []string
	if definition := c.definitions[w.resource]; definition != nil && w.operation != admission.Delete {
		refusals = definition.errors(t.Context(), w.object, w.old)
	}
	// The API server does not evaluate policies for a write that the CRDs refuse. The rows check their
	// messages nevertheless.
	isRefused := len(refusals) > 0
	attributes, namespace := w.attributes()
	for _, policy := range c.policies {
		if !policy.isAbout(attributes) {
			continue
		}
		result := policy.validator.Validate(t.Context(), attributes.GetResource(), attributes, nil,
			namespace, celconfig.RuntimeCELCostBudget, w.by)
		for _, decision := range result.Decisions {
			if decision.Evaluation == validating.EvalError && !isRefused {
				t.Errorf("%s: evaluation error: %s", policy.Name, decision.Message)
			}
			if decision.Action != validating.ActionAdmit {
				refusals = append(refusals, decision.Message)
			}
		}
	}
	return refusals
}

func (w write) attributes() (*admission.VersionedAttributes, *corev1.Namespace) {
	namespace := w.of
	if namespace == nil {
		namespace = &corev1.Namespace{}
	}
	namespace.Name = w.namespace
	object, old := asObject(w.object, w.kind), asObject(w.old, w.kind)
	resource := w.kind.GroupVersion().WithResource(w.resource)
	attributes := admission.NewAttributesRecord(object, old, w.kind, w.namespace, w.name, resource,
		w.subresource, w.operation, w.options, false, w.by.info())
	return &admission.VersionedAttributes{
		Attributes: attributes, VersionedKind: w.kind, VersionedObject: object, VersionedOldObject: old,
	}, namespace
}

// Returns a nil interface if no object exists: a typed nil would look like an object.
func asObject(content map[string]any, kind schema.GroupVersionKind) runtime.Object {
	if content == nil {
		return nil
	}
	object := &unstructured.Unstructured{Object: content}
	object.SetGroupVersionKind(kind)
	return object
}

func (p *policy) isAbout(attributes admission.Attributes) bool {
	for _, rule := range p.Spec.MatchConstraints.ResourceRules {
		matcher := rules.Matcher{Rule: rule.RuleWithOperations, Attr: attributes}
		if matcher.Matches() {
			return true
		}
	}
	return false
}

// Returns the costs of one evaluation of a policy: of its match conditions and of its validations.
func (p *policy) cost(t *testing.T, w write) (conditions, checks int64) {
	t.Helper()
	_, left := w.evaluate(t, p.Name, p.conditions, celconfig.RuntimeCELCostBudgetMatchConditions)
	_, remaining := w.evaluate(t, p.Name, p.checks, celconfig.RuntimeCELCostBudget)
	return celconfig.RuntimeCELCostBudgetMatchConditions - left, celconfig.RuntimeCELCostBudget - remaining
}

// Whether all match conditions are true.
func (p *policy) validates(t *testing.T, w write) bool {
	t.Helper()
	results, _ := w.evaluate(t, p.Name, p.conditions, celconfig.RuntimeCELCostBudgetMatchConditions)
	return !slices.ContainsFunc(results, func(of cel.EvaluationResult) bool { return of.EvalResult.Value() == false })
}

func (w write) evaluate(t *testing.T, name string, of cel.ConditionEvaluator, budget int64) ([]cel.EvaluationResult, int64) {
	t.Helper()
	attributes, namespace := w.attributes()
	request := cel.CreateAdmissionRequest(attributes.Attributes,
		metav1.GroupVersionResource(attributes.GetResource()), metav1.GroupVersionKind(w.kind))
	bindings := cel.OptionalVariableBindings{Authorizer: w.by}
	results, left, err := of.ForInput(t.Context(), attributes, request, bindings, cel.CreateNamespaceObject(namespace), budget)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return results, left
}

// A user that writes, and the verbs that it has on locks.
type who struct {
	name   string
	uid    string
	groups []string
	extra  map[string][]string
	verbs  []string
}

func (w who) info() user.Info {
	return &user.DefaultInfo{Name: w.name, UID: w.uid, Groups: w.groups, Extra: w.extra}
}

// Authorize answers the policies' authorizer checks, which are about the writer's own rights.
func (w who) Authorize(_ context.Context, asked authorizer.Attributes) (authorizer.Decision, string, error) {
	if asked.GetAPIGroup() != "leasehold.dev" || asked.GetResource() != "distributedlocks" || asked.GetNamespace() != namespaceName {
		return authorizer.DecisionNoOpinion, "", errors.New("unexpected question")
	}
	for _, verb := range w.verbs {
		if verb == asked.GetVerb() {
			return authorizer.DecisionAllow, "", nil
		}
	}
	return authorizer.DecisionDeny, "", nil
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil && !errors.Is(err, io.EOF) {
		panic(err)
	}
}
