package policies

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"sigs.k8s.io/yaml"
)

// A CRD's schema and rules.
type definition struct {
	crd        *apiextensionsv1.CustomResourceDefinition
	structural *schema.Structural
	schema     validation.SchemaValidator
	rules      *cel.Validator
}

// The CRDs by their plural names.
var definitions = sync.OnceValue(func() map[string]*definition {
	found := map[string]*definition{}
	for _, file := range must(filepath.Glob(filepath.Join(root, "crds/*.yaml"))) {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		check(yaml.UnmarshalStrict(must(os.ReadFile(file)), crd))
		found[crd.Spec.Names.Plural] = define(crd)
	}
	if len(found) != 2 {
		panic("expected the definitions of locks and sessions")
	}
	return found
})

func define(crd *apiextensionsv1.CustomResourceDefinition) *definition {
	props := &apiextensions.JSONSchemaProps{}
	check(apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
		crd.Spec.Versions[0].Schema.OpenAPIV3Schema, props, nil))
	structural := must(schema.NewStructural(props))
	validator, _, err := validation.NewSchemaValidator(props)
	check(err)
	return &definition{
		crd: crd, structural: structural, schema: validator,
		rules: cel.NewValidator(structural, true, celconfig.PerCallLimit),
	}
}

// Returns the errors of an object: of an update of `old`, or of a create if `old` is nil.
func (d *definition) errors(ctx context.Context, object, old map[string]any) []string {
	var found field.ErrorList
	var oldObject any
	var options []cel.Option
	if old == nil {
		found = validation.ValidateCustomResource(nil, object, d.schema)
	} else {
		oldObject = old
		correlated := common.NewCorrelatedObject(object, old, &model.Structural{Structural: d.structural})
		options = append(options, cel.WithRatcheting(correlated))
		found = validation.ValidateCustomResourceUpdate(nil, object, old, d.schema, validation.WithRatcheting(correlated))
	}
	found = append(found, listtype.ValidateListSetsAndMaps(nil, d.structural, object)...)
	// Rules cannot be evaluated for objects that violate the schema.
	if len(found) == 0 {
		broken, _ := d.rules.Validate(ctx, nil, d.structural, object, oldObject, celconfig.RuntimeCELCostBudget, options...)
		found = append(found, broken...)
	}
	var words []string
	for _, each := range found {
		words = append(words, strings.TrimSpace(each.Error()))
	}
	return words
}
