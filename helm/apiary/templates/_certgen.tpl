{{- /* Job and CronJob that make certificates (method cronJob), their account and what it may do: root, certificates (by the name
       of their secret: domain and values). */ -}}
{{- define "apiary.certgen" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $account := $values.serviceAccounts.hubblecertgen -}}
{{- /* Helm deletes what an upgrade does not render: an authority that another method has made stays. */ -}}
{{- $there := lookup "v1" "Secret" $root.Release.Namespace "cilium-ca" | default dict -}}
{{- $data := dict -}}
{{- if and $values.tls.ca.cert $values.tls.ca.key -}}
  {{- $data = dict "ca.crt" $values.tls.ca.cert "ca.key" $values.tls.ca.key -}}
{{- else if eq (dig "metadata" "annotations" "meta.helm.sh/release-name" "" $there) $root.Release.Name -}}
  {{- $data = $there.data -}}
{{- end -}}
{{- if $data }}
---
apiVersion: v1
kind: Secret
metadata:
  name: cilium-ca
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "apiary.labels" $root | nindent 4 }}
data:
  {{- toYaml $data | nindent 2 }}
{{- end }}
{{- if $account.create }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $account.name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "apiary.labels" $root | nindent 4 }}
  {{- with $account.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- if $values.rbac.create }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: hubble-generate-certs
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "apiary.labels" $root | nindent 4 }}
rules:
- apiGroups: [""]
  resources: [secrets]
  verbs: [create] # no name can be given: a new object has none yet
- apiGroups: [""]
  resources: [secrets]
  resourceNames: {{ keys .certificates | sortAlpha | toJson }}
  verbs: [update]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [cilium-ca]
  verbs: [get]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: hubble-generate-certs
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "apiary.labels" $root | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: hubble-generate-certs}
subjects:
- {kind: ServiceAccount, name: {{ $account.name }}, namespace: {{ $root.Release.Namespace }}}
{{- end }}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: hubble-generate-certs
  namespace: {{ $root.Release.Namespace }}
  labels:
    k8s-app: hubble-generate-certs
    app.kubernetes.io/name: hubble-generate-certs
    {{- include "apiary.labels" $root | nindent 4 }}
  annotations:
    # After helm has deleted secrets of another method; a Job cannot be changed.
    helm.sh/hook: post-install,post-upgrade
    helm.sh/hook-delete-policy: before-hook-creation
    {{- with $values.certgen.annotations.job }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "apiary.certgenJob" . | nindent 2 }}
{{- with $values.hubble.tls.auto.schedule }}
---
apiVersion: batch/v1
kind: CronJob
metadata:
  name: hubble-generate-certs
  namespace: {{ $root.Release.Namespace }}
  labels:
    k8s-app: hubble-generate-certs
    app.kubernetes.io/name: hubble-generate-certs
    {{- include "apiary.labels" $root | nindent 4 }}
  {{- with $values.certgen.annotations.cronJob }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  schedule: {{ . | quote }}
  concurrencyPolicy: Forbid
  successfulJobsHistoryLimit: {{ int $values.certgen.cronJob.successfulJobsHistoryLimit }}
  failedJobsHistoryLimit: {{ int $values.certgen.cronJob.failedJobsHistoryLimit }}
  jobTemplate:
    spec:
      {{- include "apiary.certgenJob" $ | nindent 6 }}
{{- end }}
{{- end }}

{{- /* The spec of the Job: the arguments are those of `apiary.certgen`. */ -}}
{{- define "apiary.certgenJob" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $certgen := $values.certgen -}}
{{- $list := list -}}
{{- range $secret := keys .certificates | sortAlpha -}}
  {{- $certificate := get $.certificates $secret -}}
  {{- $name := printf "*.%s.cilium.io" $certificate.domain -}}
  {{- $hosts := concat (list $name) ($certificate.values.extraDnsNames | default list) ($certificate.values.extraIpAddresses | default list) -}}
  {{- $list = append $list (dict "name" $secret "namespace" $root.Release.Namespace "commonName" $name "hosts" $hosts
        "usage" (list "signing" "key encipherment" "server auth" "client auth")
        "validity" (printf "%dh" (mul (int $values.hubble.tls.auto.certValidityDuration) 24))) -}}
{{- end -}}
{{- with $certgen.ttlSecondsAfterFinished -}}
ttlSecondsAfterFinished: {{ int . }}
{{ end -}}
template:
  metadata:
    {{- with $certgen.podAnnotations }}
    annotations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    labels:
      k8s-app: hubble-generate-certs
      {{- include "apiary.labels" $root | nindent 6 }}
      {{- with $certgen.podLabels }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
  spec:
    restartPolicy: OnFailure
    serviceAccountName: {{ $values.serviceAccounts.hubblecertgen.name }}
    automountServiceAccountToken: {{ $values.serviceAccounts.hubblecertgen.automount }}
    {{- with $certgen.priorityClassName }}
    priorityClassName: {{ . }}
    {{- end }}
    securityContext:
      seccompProfile: {type: RuntimeDefault}
    {{- with $values.imagePullSecrets }}
    imagePullSecrets:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $certgen.affinity }}
    affinity:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $certgen.nodeSelector }}
    nodeSelector:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $certgen.tolerations }}
    tolerations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    containers:
    - name: certgen
      image: {{ include "apiary.image" (dict "image" $certgen.image "appVersion" $root.Chart.AppVersion) | quote }}
      imagePullPolicy: {{ $certgen.image.pullPolicy }}
      # The path of Cilium's program: an image of it does as well.
      command: [/usr/bin/cilium-certgen]
      args:
      {{- if $values.debug.enabled }}
      - --debug
      {{- end }}
      - --ca-generate={{ $certgen.generateCA }}
      - --ca-reuse-secret
      - --ca-secret-namespace={{ $root.Release.Namespace }}
      - --ca-secret-name=cilium-ca
      - --ca-common-name=Cilium CA
      env:
      - name: CILIUM_CERTGEN_CONFIG
        value: |
          {{- dict "certs" $list | toYaml | nindent 10 }}
      {{- with include "apiary.apiServer" $root | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- with $certgen.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      {{- with $certgen.extraVolumeMounts }}
      volumeMounts:
      {{- toYaml . | nindent 6 }}
      {{- end }}
      terminationMessagePolicy: FallbackToLogsOnError
    {{- with $certgen.extraVolumes }}
    volumes:
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
